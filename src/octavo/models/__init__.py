"""Architectures: a checkpoint's config becomes a `DecoderSpec`, and that becomes a Program."""
