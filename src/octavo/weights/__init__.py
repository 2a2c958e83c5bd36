"""Weights: from the tensors of a model's file to packed matrices."""
