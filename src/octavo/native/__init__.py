"""The native kernels: which ISA level is loaded, and how many threads are used by default.

The modules `_k_avx512`, `_k_avx2` and `_k_generic` are the same sources compiled for different CPUs; `_detect` finds
the best of them.
"""

from __future__ import annotations

from octavo.native.isa import ISA_LEVELS, kernels, load_kernels
from octavo.native.threads import default_num_threads

__all__ = ["ISA_LEVELS", "default_num_threads", "kernels", "load_kernels"]
