"""A model in each GGUF type gives the logits of its dequantised floats, bit for bit, from one file or from parts."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from octavo import LLM, SamplingParams

HIDDEN, VOCABULARY, LAYERS = 256, 48, 2
PROMPTS = [[3, 17, 40, 5, 5, 9], [11, 2]]
SCALE_FIELDS = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
    "Q5_1": (0, 2),
    "Q5_K": (0, 2),
}
"""Where a block has its float16 numbers."""
FLOAT_PATH = {"activation_quantization": False, "kv_cache_dtype": "float32"}


def make_rows(kind: gguf.GGMLQuantizationType, rows: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Return random blocks with small scales, [rows, bytes of a row]."""
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows, HIDDEN // block_values, block_bytes), dtype=np.uint8)
    for at in SCALE_FIELDS[kind.name]:
        scales = rng.uniform(1e-4, 1e-3, blocks.shape[:2]).astype("<f2")
        blocks[:, :, at : at + 2] = scales[..., None].view(np.uint8)
    if kind.name == "MXFP4":
        blocks[:, :, 0] = rng.integers(120, 124, blocks.shape[:2])
    return blocks.reshape(rows, -1)


def write_model(path: Path, kind: gguf.GGMLQuantizationType, *, as_floats: bool = False, max_tensors: int = 0) -> Path:
    rng = np.random.default_rng(kind.value)
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=max_tensors)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*(chr(33 + i) for i in range(VOCABULARY - 1)), "AB"])
    writer.add_token_merges(["A B"])
    sizes = {"attn_q": HIDDEN, "attn_k": HIDDEN // 2, "attn_v": HIDDEN // 2, "attn_output": HIDDEN}
    sizes |= {"ffn_gate": HIDDEN, "ffn_up": HIDDEN, "ffn_down": HIDDEN}
    matrices = {f"blk.{layer}.{role}.weight": rows for layer in range(LAYERS) for role, rows in sizes.items()}
    for name, rows in {"token_embd.weight": VOCABULARY, **matrices}.items():
        stored = make_rows(kind, rows, rng)
        if as_floats:
            writer.add_tensor(name, gguf.quants.dequantize(stored, kind).astype(np.float32))
        else:
            writer.add_tensor(name, stored, raw_dtype=kind)
    for name in (
        "output_norm",
        *(f"blk.{layer}.{norm}" for layer in range(LAYERS) for norm in ("attn_norm", "ffn_norm")),
    ):
        writer.add_tensor(f"{name}.weight", rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(model: Path, prompts: list[list[int]], **options: object) -> list[list[dict[int, float]]]:
    with LLM(model, max_logprobs=-1, logprobs_mode="raw_logits", **options) as llm:
        params = SamplingParams(temperature=0, max_tokens=3, logprobs=-1, ignore_eos=True)
        outputs = llm.generate(prompts, params, use_tqdm=False)
    return [
        [{token: entry.logprob for token, entry in step.items()} for step in output.outputs[0].logprobs]
        for output in outputs
    ]


@pytest.fixture(params=SCALE_FIELDS)
def kind(request: pytest.FixtureRequest) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[request.param]


@pytest.mark.usefixtures("own_cache")
def test_logits_are_those_of_the_dequantised_model(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    expected = logits(write_model(tmp_path / "floats.gguf", kind, as_floats=True), PROMPTS, **FLOAT_PATH)
    assert logits(write_model(tmp_path / "model.gguf", kind), PROMPTS, **FLOAT_PATH) == expected


@pytest.mark.usefixtures("own_cache")
def test_a_batch_gives_the_bits_of_each_prompt_alone(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    model = write_model(tmp_path / "model.gguf", kind)
    assert logits(model, PROMPTS) == [logits(model, [prompt])[0] for prompt in PROMPTS]


@pytest.mark.usefixtures("own_cache")
def test_a_split_model_is_the_same_model(tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType.Q3_K
    write_model(tmp_path / "split.gguf", kind, max_tensors=6)
    parts = sorted(tmp_path.glob("split-*.gguf"))
    assert len(parts) > 2
    expected = logits(write_model(tmp_path / "model.gguf", kind), PROMPTS)
    assert all(logits(part, PROMPTS) == expected for part in (parts[0], parts[-1]))
