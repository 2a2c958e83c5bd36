"""The laboratory: one workload, run on the real engine again and again with one policy changed."""
