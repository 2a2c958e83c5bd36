"""Makes the tiny checkpoints of tests/data/tiny: random weights, with logits and greedy ids from transformers.

    python tools/make_tiny_checkpoints.py OUT [--only llama --only qwen3]
    python tools/make_tiny_checkpoints.py tests/data/tiny --hidden-states llama --hidden-states qwen3

Needs torch, transformers and safetensors; the tests do not run it, it is for adding a family. A run draws numbers of
its own, so checkpoint and reference are always committed together. The tokenizer files are copied from
tests/data/tiny/llama: the first 2,048 ids of SmolLM2's vocabulary (specials, bytes, then merges in order of rank, so
that the cut is a valid tokenizer).

Weights are bfloat16, of which the reference is computed in float32. They are not the default initialisation, which
hides mistakes: norm weights vary around 1, biases are not zero, and linears are large enough to bend the logits.
Windows and the original lengths of rope scaling lie inside the sequence.

The second form adds to checkpoints that are there, of any family, the hidden states of their reference's tokens.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

TOKENIZER_DIR = Path(__file__).parents[1] / "tests" / "data" / "tiny" / "llama"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
TEXT = (
    "The capital of France is Paris. In 1789, the people of the city took the prison; then a new time began for all of"
    " them, and the old king was gone."
)
NUM_TOKENS = 48
NUM_PROMPT_TOKENS = 24
NUM_GREEDY_TOKENS = 24

SIZES: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}


def rope(theta: float, kind: str = "default", **settings: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": theta, **settings}


SMALL_VOCABULARY = {"vocab_size": 391}
"""Of checkpoints that no test gives a text to."""

ODD_SIZES: dict[str, Any] = {
    **SMALL_VOCABULARY,
    "hidden_size": 60,
    "intermediate_size": 77,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "head_dim": 20,
}
"""Multiples of nothing, for families whose checkpoints need no tokenizer."""

ODD_DELTA_NET: dict[str, Any] = {
    **ODD_SIZES,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "head_dim": 24,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 9,
    "linear_key_head_dim": 20,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
}
ODD_MOE = {
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 33,
    "shared_expert_intermediate_size": 31,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True}
GRANITE = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.0625,
    "residual_multiplier": 0.22,
    "logits_scaling": 6.0,
    "rope_parameters": rope(1e4),
}
LONGROPE = rope(
    1e4,
    "longrope",
    partial_rotary_factor=0.6,
    short_factor=[1.0, 1.1, 1.2, 1.3, 1.5, 1.7],
    long_factor=[1.0, 2.0, 4.0, 6.0, 9.0, 12.0],
    original_max_position_embeddings=20,
)
PARTIAL_ROPE = rope(1e7, partial_rotary_factor=0.25)
QWEN3_5_ROPE = {**PARTIAL_ROPE, "mrope_section": [1, 1, 1], "mrope_interleaved": True}
GEMMA3_ROPE = {"sliding_attention": rope(1e4), "full_attention": rope(1e6, "linear", factor=8.0)}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"rope_parameters": rope(5e5), "tie_word_embeddings": True}),
    "llama3_rope": (
        "llama",
        {
            **SMALL_VOCABULARY,
            "rope_parameters": rope(5e5, "llama3", **LLAMA3),
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "llama_yarn": (
        "llama",
        {**SMALL_VOCABULARY, "rope_parameters": rope(1e4, "yarn", factor=4.0, original_max_position_embeddings=64)},
    ),
    "mistral": ("mistral", {**SMALL_VOCABULARY, "head_dim": 24, "sliding_window": 16, "rope_parameters": rope(1e6)}),
    "qwen2": ("qwen2", {**SMALL_VOCABULARY, "rope_parameters": rope(1e6), "tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 32, "rope_parameters": rope(1e6)}),
    "mixtral": (
        "mixtral",
        {**SMALL_VOCABULARY, "num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": rope(1e6)},
    ),
    "olmo2": ("olmo2", {**SMALL_VOCABULARY, "rope_parameters": rope(5e5)}),
    "olmoe": (
        "olmoe",
        {
            **SMALL_VOCABULARY,
            "num_experts": 7,
            "num_experts_per_tok": 3,
            "intermediate_size": 48,
            "rope_parameters": rope(1e4),
        },
    ),
    "qwen2_moe": (
        "qwen2_moe",
        {
            **SMALL_VOCABULARY,
            **MOE,
            "norm_topk_prob": False,
            "shared_expert_intermediate_size": 80,
            "decoder_sparse_step": 2,
            "tie_word_embeddings": True,
            "rope_parameters": rope(1e6),
        },
    ),
    "qwen3_moe": (
        "qwen3_moe",
        {**SMALL_VOCABULARY, **MOE, "head_dim": 32, "mlp_only_layers": [1], "rope_parameters": rope(1e6)},
    ),
    "qwen3_next": (
        "qwen3_next",
        {
            **SMALL_VOCABULARY,
            **MOE,
            "num_hidden_layers": 4,
            "head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "shared_expert_intermediate_size": 48,
            "tie_word_embeddings": True,
            "rope_parameters": rope(1e7, partial_rotary_factor=0.25),
        },
    ),
    "glm4_moe": (
        "glm4_moe",
        {
            **SMALL_VOCABULARY,
            "head_dim": 32,
            "attention_bias": True,
            "use_qk_norm": True,
            "n_routed_experts": 12,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.5,
            "rope_parameters": rope(1e6, partial_rotary_factor=0.5),
        },
    ),
    "smollm3": (
        "smollm3",
        {**ODD_SIZES, "num_hidden_layers": 4, "tie_word_embeddings": True, "rope_parameters": rope(5e6)},
    ),
    "gemma": (
        "gemma",
        {
            **ODD_SIZES,
            "head_dim": 24,
            "hidden_activation": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
            "rope_parameters": rope(1e4),
        },
    ),
    "gemma2": (
        "gemma2",
        {
            **ODD_SIZES,
            "head_dim": 24,
            "num_hidden_layers": 4,
            "sliding_window": 8,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 0.3,
            "tie_word_embeddings": True,
            "rope_parameters": rope(1e4),
        },
    ),
    "phi3": (
        "phi3",
        {**ODD_SIZES, "hidden_size": 100, "num_key_value_heads": 5, "sliding_window": 16, "rope_parameters": rope(1e4)},
    ),
    "phi4_longrope": (
        "phi3",
        {
            **ODD_SIZES,
            "hidden_size": 100,
            "max_position_embeddings": 256,
            "original_max_position_embeddings": 20,
            "tie_word_embeddings": True,
            "rope_parameters": LONGROPE,
        },
    ),
    "olmo3": (
        "olmo3",
        {
            **ODD_SIZES,
            "num_hidden_layers": 4,
            "sliding_window": 8,
            "rope_parameters": {
                "sliding_attention": rope(5e5),
                "full_attention": rope(5e5, "yarn", factor=8.0, original_max_position_embeddings=32),
            },
        },
    ),
    "glm4": (
        "glm4",
        {**ODD_SIZES, "attention_bias": True, "rope_parameters": rope(1e4, partial_rotary_factor=0.5)},
    ),
    "granite": (
        "granite",
        {**SMALL_VOCABULARY, **GRANITE, "tie_word_embeddings": True, "attention_multiplier": 0.015625},
    ),
    "granitemoe": (
        "granitemoe",
        {**SMALL_VOCABULARY, **GRANITE, "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 80},
    ),
    "gemma3_text": (
        "gemma3_text",
        {
            "head_dim": 32,
            "num_hidden_layers": 6,
            "sliding_window": 8,
            "query_pre_attn_scalar": 32,
            "tie_word_embeddings": True,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
            "rope_parameters": GEMMA3_ROPE,
        },
    ),
    "qwen3_5_odd": ("qwen3_5_text", {**ODD_DELTA_NET, "rope_parameters": QWEN3_5_ROPE}),
    "qwen3_5_moe_odd": ("qwen3_5_moe_text", {**ODD_DELTA_NET, **ODD_MOE, "rope_parameters": QWEN3_5_ROPE}),
    "qwen3_next_odd": ("qwen3_next", {**ODD_DELTA_NET, **ODD_MOE, "rope_parameters": PARTIAL_ROPE}),
    "qwen3_5_small_states": (
        "qwen3_5_text",
        {
            **ODD_DELTA_NET,
            "num_hidden_layers": 6,
            "linear_num_value_heads": 3,
            "linear_key_head_dim": 7,
            "linear_value_head_dim": 3,
            "linear_conv_kernel_dim": 3,
            "rope_parameters": QWEN3_5_ROPE,
        },
    ),
    "llama_linear": ("llama", {**SMALL_VOCABULARY, "rope_parameters": rope(1e4, "linear", factor=4.0)}),
    "llama_dynamic": (
        "llama",
        {**SMALL_VOCABULARY, "max_position_embeddings": 64, "rope_parameters": rope(1e4, "dynamic", factor=2.0)},
    ),
}
"""Name → model type, and what differs from SIZES."""

EMBEDDING_SCALES = {"gemma": 0.2, "gemma2": 0.2, "gemma3_text": 0.2, "granite": 0.03, "granitemoe": 0.03}
"""Of the models that multiply their embedding."""

SENSITIVE = frozenset({"qwen3_5_small_states"})
"""Where float32 itself is further from the truth than tests allow: their reference has the logits in double too."""

OLD_DIALECT = frozenset(
    {
        *("llama", "llama3_rope", "llama_linear", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"),
        *("granitemoe", "phi4_longrope", "glm4"),
    }
)
"""Their config.json is rewritten as transformers 4.x wrote it, which is what most files on the hub look like."""


@torch.no_grad()
def draw_weights(model: torch.nn.Module, seed: int, *, tied: bool, embedding_scale: float) -> None:
    """Replace every parameter by random numbers that make mistakes visible."""
    generator = torch.Generator().manual_seed(seed)

    def draw(parameter: torch.Tensor, deviation: float, mean: float = 0.0) -> None:
        parameter.copy_(mean + deviation * torch.randn(parameter.shape, generator=generator))

    norms = {id(p) for m in model.modules() if "Norm" in type(m).__name__ for p in m.parameters(recurse=False)}
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    for parameter in model.parameters():
        if id(parameter) in norms:
            stored_around_zero = not parameter.detach().any()
            draw(parameter, 0.3, 0.0 if stored_around_zero else 1.0)
        elif id(parameter) in embeddings:
            draw(parameter, embedding_scale * (1 / math.sqrt(parameter.shape[1]) if tied else 0.5))
        elif parameter.dim() == 1:
            draw(parameter, 0.2)
        else:
            draw(parameter, 1.5 / math.sqrt(parameter.shape[-1]))
        parameter.copy_(parameter.bfloat16())
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            draw(buffer, 0.2)


@torch.no_grad()
def logits_of(model: torch.nn.Module, token_ids: list[int]) -> torch.Tensor:
    """Return the logits [tokens, V] of one forward pass without a cache."""
    logits: torch.Tensor = model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]
    return logits


@contextmanager
def double_precision() -> Iterator[None]:
    """Make double what models make float32 whatever their dtype."""
    single, to_single = torch.float32, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32 = torch.float = single
        torch.Tensor.float = to_single


def rewrite_in_old_dialect(path: Path) -> None:
    """Move the rope settings of a config.json where transformers 4.x has them."""
    config = json.loads(path.read_text())
    settings = config.pop("rope_parameters")
    config["rope_theta"] = settings.pop("rope_theta")
    if "partial_rotary_factor" in settings:
        config["partial_rotary_factor"] = settings.pop("partial_rotary_factor")
    config["rope_scaling"] = None if settings["rope_type"] == "default" else settings
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.51.0"
    path.write_text(json.dumps(config, indent=2))


def hold_rope_factors(model: torch.nn.Module) -> None:
    """Have dynamic rope scaling keep the factors of the whole context, as the engine does, for any sequence."""
    settings = model.config.rope_parameters
    if settings.get("rope_type") == "dynamic":
        logits_of(model, [0] * int(model.config.max_position_embeddings * settings["factor"]))
        model.base_model.rotary_emb.original_max_seq_len = 0  # else a short sequence would bring the first ones back


@torch.no_grad()
def write_hidden_states(directory: Path) -> None:
    """Record the hidden states [tokens, E], after the final norm, of the tokens of a checkpoint's reference."""
    token_ids = load_file(directory / "ref.safetensors")["input_ids"]
    model = load_model(directory)
    states = model.base_model(input_ids=token_ids[None], use_cache=False).last_hidden_state[0].float()
    save_file({"hidden_states": states.contiguous()}, directory / "hidden.safetensors")


def load_model(directory: Path) -> torch.nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()


def write_reference(directory: Path, model_type: str, token_ids: list[int], *, sensitive: bool) -> None:
    """Load the checkpoint from disk, and record its logits and its greedy continuation.

    Args:
        sensitive: record what the logits are in double precision, too.
    """
    model = load_model(directory)
    hold_rope_factors(model)
    logits = logits_of(model, token_ids)
    tensors = {"input_ids": torch.tensor(token_ids), "logits": logits.contiguous()}
    ids = token_ids[:NUM_PROMPT_TOKENS]
    for _ in range(NUM_GREEDY_TOKENS):
        ids = [*ids, int(logits_of(model, ids)[-1].argmax())]
    if sensitive:
        model.double()
        with double_precision():
            tensors["double_logits"] = logits_of(model, token_ids).contiguous()
    save_file(tensors, directory / "ref.safetensors")
    record = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "model_type": model_type,
        "prompt_ids": ids[:NUM_PROMPT_TOKENS],
        "greedy_ids": ids[NUM_PROMPT_TOKENS:],
        "logit_std": logits.std().item(),
    }
    (directory / "ref.json").write_text(json.dumps(record, indent=1))


def make_checkpoint(directory: Path, name: str, seed: int) -> None:
    """Write one checkpoint with its reference."""
    model_type, changes = FAMILIES[name]
    config = transformers.AutoConfig.for_model(model_type, **{**SIZES, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    embedding_scale = EMBEDDING_SCALES.get(model_type, 1.0)
    draw_weights(model, seed, tied=config.tie_word_embeddings, embedding_scale=embedding_scale)
    directory.mkdir(parents=True, exist_ok=True)
    model.bfloat16().save_pretrained(directory)
    if name in OLD_DIALECT:
        rewrite_in_old_dialect(directory / "config.json")
    token_ids = [(7 + 131 * index) % config.vocab_size for index in range(NUM_TOKENS)]
    if config.vocab_size == SIZES["vocab_size"]:
        for file in TOKENIZER_FILES:
            shutil.copy(TOKENIZER_DIR / file, directory)
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER_DIR / "tokenizer.json"))
        token_ids = (tokenizer(TEXT)["input_ids"] * 4)[:NUM_TOKENS]
    write_reference(directory, model_type, token_ids, sensitive=name in SENSITIVE)


def main() -> None:
    """Make the checkpoints named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", action="append", choices=list(FAMILIES))
    parser.add_argument("--hidden-states", action="append", default=[], metavar="NAME")
    arguments = parser.parse_args()
    for name in arguments.hidden_states:
        write_hidden_states(arguments.out / name)
        print(f"{name}: hidden states written to {arguments.out / name}")
    if arguments.hidden_states:
        return
    for index, name in enumerate(FAMILIES):
        if arguments.only is None or name in arguments.only:
            make_checkpoint(arguments.out / name, name, seed=1000 + index)
            print(f"{name}: written to {arguments.out / name}")


if __name__ == "__main__":
    main()
