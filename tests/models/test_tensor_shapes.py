"""A tensor of any shape at all in any place of a checkpoint is refused by name, before anything of its size is made."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import TINY_DIR, TINY_MODELS, read_config

from octavo.errors import ModelLoadError
from octavo.formats.safetensors import SafetensorsTensor, open_safetensors_dir
from octavo.models.decoder import build_program
from octavo.models.registry import hf_architecture, spec_from_hf
from octavo.weights.checkpoint import checkpoint_from_safetensors
from octavo.weights.names import stable_name_from_hf

SHAPES = [(), (0,), (1 << 33, 0), (0, 1 << 33), (7, 5), (3, 0, 1 << 33), (1, 1, 1, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("architecture", TINY_MODELS)
def test_a_tensor_with_a_shape_of_its_own_is_refused(architecture: str, shape: tuple[int, ...]) -> None:
    name = TINY_MODELS[architecture][0]
    config, tensors = read_config(name), open_safetensors_dir(TINY_DIR / name)
    spec, found = spec_from_hf(config, name), hf_architecture(config, name)
    program = build_program(spec, max_model_len=32, block_size=16, cache_dtype="float32")
    data = np.zeros(4 * int(np.prod(shape, dtype=object)), np.uint8)
    for changed in (key for key in tensors if stable_name_from_hf(key) is not None):
        odd = SafetensorsTensor(changed, "F32", shape, data)
        checkpoint = checkpoint_from_safetensors({**tensors, changed: odd}, name, norm_offset=found.norm_offset)
        with pytest.raises(ModelLoadError):
            found.adapt(checkpoint, spec).check(program)
