"""The model as data: what is computed, and its readers."""
