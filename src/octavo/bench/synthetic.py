"""A small model of random weights in any format, for measuring kernels without a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.bench.steps import LoadedProgram
from octavo.formats.gguf_types import GgufType
from octavo.models.base import DecoderSpec, LayerSpec
from octavo.models.decoder import build_program
from octavo.models.rope import RopeSpec
from octavo.native import kernels
from octavo.weights.packing import NATIVE_FORMATS
from octavo.weights.store import WeightStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from octavo.program.ops import Weight

NUM_LAYERS = 8
_SCALE = 0.01
_NUM_PATTERN_BLOCKS = 1021
"""A prime number of random blocks is repeated, so that no two rows are alike."""
_SCALE_FIELDS: Mapping[GgufType, tuple[int, ...]] = {
    GgufType.Q4_0: (0,),
    GgufType.Q4_1: (0, 2),
    GgufType.Q5_0: (0,),
    GgufType.Q5_1: (0, 2),
    GgufType.Q8_0: (0,),
    GgufType.Q4_K: (0, 2),
    GgufType.Q5_K: (0, 2),
    GgufType.Q6_K: (208,),
    GgufType.Q2_K: (80, 82),
    GgufType.Q3_K: (108,),
    GgufType.IQ4_NL: (0,),
    GgufType.IQ4_XS: (0,),
    GgufType.MXFP4: (),
    GgufType.Q4_Z: (0, 2),
}
"""Where a block of the format has its float16 numbers: random bits there could be NaN."""


def synthetic_program(
    kind: GgufType, max_model_len: int, num_threads: int, activation_quantization: bool
) -> LoadedProgram:
    """Return eight layers with the shapes of Qwen3-0.6B, which every format can store; all matrices in one format."""
    rope = RopeSpec(theta=1e6, rotary_dim=128)
    spec = DecoderSpec(
        vocab_size=32_768,
        hidden_size=1024,
        ffn_size=3072,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
        layers=(LayerSpec(None, rope),) * NUM_LAYERS,
        max_positions=max_model_len,
        eps=1e-6,
        attention_scale=128**-0.5,
        tied_embeddings=True,
        qk_norm="head",
    )
    program = build_program(spec, max_model_len=max_model_len, block_size=16, cache_dtype="float16")
    weights = WeightStore(
        matrices={w.name: (_pack(w, kind, num_threads),) for w in program.weights if w.is_matrix},
        vectors={w.name: np.ones(w.shape, np.float32) for w in program.weights if not w.is_matrix},
    )
    return LoadedProgram(program, weights, num_threads, activation_quantization)


def _pack(weight: Weight, kind: GgufType, num_threads: int) -> Any:
    num_rows, width = weight.shape
    pattern = _random_blocks(kind, _NUM_PATTERN_BLOCKS)
    rows = np.resize(pattern, (num_rows, width // kind.block_elements * kind.block_bytes))
    return kernels().PackedMatrix.pack(NATIVE_FORMATS[kind], [rows], num_rows, width, None, num_threads)


def _random_blocks(kind: GgufType, count: int) -> NDArray[np.uint8]:
    """Return [count, bytes of a block]."""
    rng = np.random.default_rng(0)
    if kind in _SCALE_FIELDS:
        blocks = rng.integers(0, 256, (count, kind.block_bytes), dtype=np.uint8)
        for offset in _SCALE_FIELDS[kind]:
            blocks[:, offset : offset + 2] = np.frombuffer(np.float16(_SCALE).tobytes(), np.uint8)
        return blocks
    values: NDArray[Any] = rng.standard_normal((count, kind.block_elements), dtype=np.float32) * np.float32(_SCALE)
    if kind is GgufType.F16:
        values = values.astype(np.float16)
    if kind is GgufType.BF16:
        values = np.ascontiguousarray(values.view(np.uint16)[:, 1::2])
    return values.view(np.uint8)
