"""Loads the weights of a resolved model: as the file has them, or rounded, with a progress bar and from the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.frontend.progress import quantizing_bar
from octavo.native import kernels
from octavo.weights.quantized_cache import QuantizedCache
from octavo.weights.quantizer import WeightQuantizer
from octavo.weights.store import load_weights

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.frontend.resolve import ResolvedConfig
    from octavo.program.ops import Program
    from octavo.weights.store import WeightStore


def load_model_weights(config: EngineConfig, resolved: ResolvedConfig, program: Program) -> WeightStore:
    """Pack what a program reads, rounding what is to be.

    Raises: `ModelLoadError`.
    """
    native, checkpoint, num_threads = kernels().PackedMatrix, resolved.model.checkpoint, resolved.num_threads
    if config.quantization is None:
        return load_weights(program, checkpoint, pack=native.pack, num_threads=num_threads)
    cache = None
    if config.cache_quantized_weights:
        cache = QuantizedCache(checkpoint, config.quantization, kernels().PACKING_VERSION)
    with quantizing_bar(config.use_tqdm_on_load, checkpoint.bytes_to_round) as advance:
        quantize = WeightQuantizer(native, num_threads=num_threads, cache=cache, advance=advance)
        weights = load_weights(program, checkpoint, pack=native.pack, num_threads=num_threads, quantize=quantize)
    quantize.keep()
    return weights
