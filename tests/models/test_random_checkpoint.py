"""The tool that makes a random checkpoint: the shape it claims, and a small one that a program accepts."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from octavo.formats.safetensors import open_safetensors_dir
from octavo.models.decoder import build_program
from octavo.models.registry import hf_architecture, spec_from_hf
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.weights.checkpoint import checkpoint_from_safetensors

TOOL = Path(__file__).parents[2] / "tools" / "make_random_checkpoint.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_random_checkpoint", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_full_size_has_the_models_parameters(tool: ModuleType) -> None:
    assert sum(tensor.size for tensor in tool.tensors_of(tool.Sizes())) == 752_393_024


@pytest.mark.parametrize("scale", [8, 16])
def test_a_scaled_checkpoint_is_what_its_config_says(scale: int, tmp_path: Path) -> None:
    subprocess.run([sys.executable, TOOL, tmp_path, "--scale", str(scale)], check=True, capture_output=True)
    config = json.loads((tmp_path / "config.json").read_text())
    architecture, spec = hf_architecture(config, "config.json"), spec_from_hf(config, "config.json")
    tensors = open_safetensors_dir(tmp_path)
    checkpoint = checkpoint_from_safetensors(tensors, "here", norm_offset=architecture.norm_offset)
    program = build_program(spec, max_model_len=64, block_size=16, cache_dtype="float16")
    architecture.adapt(checkpoint, spec).check(program)


def test_its_tokenizer_round_trips_and_its_template_can_think(tool: ModuleType, tmp_path: Path) -> None:
    tool.write_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.decode(tokenizer.encode("héllo")) == "héllo"
    conversation = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True, enable_thinking=True)
    assert text.endswith("<|im_start|>assistant\n<think>\n")
