"""Loads the weights of a resolved model: as the file has them, or rounded, with a progress bar and from the cache."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from octavo.frontend.progress import quantizing_bar
from octavo.native import kernels
from octavo.weights.store import load_weights

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.frontend.resolve import ResolvedConfig
    from octavo.program.ops import Program
    from octavo.weights.store import WeightStore


class Packing(Protocol):
    """`Packing` of the native module in use: packs while others do something else."""

    def wait(self) -> None:
        """Help until all is packed."""
        ...


def load_model_weights(config: EngineConfig, resolved: ResolvedConfig, program: Program) -> tuple[WeightStore, Packing]:
    """Pack what a program reads, rounding what is to be. Nothing may run before what packs has been waited for.

    Raises: `ModelLoadError`.
    """
    checkpoint, num_threads = resolved.model.checkpoint, resolved.num_threads
    packing = kernels().Packing(num_threads)
    # A matrix that is made from codes of another kind is packed before the next is made: in memory is one at a time.
    pack_made = partial(kernels().PackedMatrix.pack, num_threads=num_threads)
    if config.quantization is None:
        return load_weights(program, checkpoint, pack=packing.pack, pack_made=pack_made), packing
    from octavo.weights.quantized_cache import QuantizedCache  # few models are rounded
    from octavo.weights.quantizer import WeightQuantizer

    cache = None
    if config.cache_quantized_weights:
        cache = QuantizedCache(checkpoint, config.quantization, kernels().PACKING_VERSION)
    with quantizing_bar(config.use_tqdm_on_load, checkpoint.bytes_to_round) as advance:
        quantize = WeightQuantizer(kernels().PackedMatrix, num_threads=num_threads, cache=cache, advance=advance)
        weights = load_weights(program, checkpoint, pack=packing.pack, pack_made=pack_made, quantize=quantize)
    quantize.keep()
    return weights, packing
