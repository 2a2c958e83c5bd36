"""Makes a checkpoint of the exact shape of Qwen3.5-0.8B with random weights, to measure speed and memory on.

    python tools/make_random_checkpoint.py OUT [--scale 4] [--seed 0]

Writes 1.5 GB of bfloat16 safetensors, config.json, and a tokenizer of single bytes with a chat template; nothing but
numpy and tokenizers is needed. `--scale` divides widths, heads, layers and vocabulary, for something that is made and
loaded in no time. The text it writes is noise.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

CHUNK_VALUES = 1 << 22
"""Drawn at once: the largest tensor has 254 million."""
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is true %}<think>
{% else %}<think>

</think>

{% endif %}{% endif %}"""

Floats = npt.NDArray[np.float32]
Draw = Callable[[np.random.Generator, int], Floats]


@dataclass(frozen=True)
class Sizes:
    """Of the text model, by the names of config.json."""

    vocab_size: int = 248_320
    hidden_size: int = 1024
    intermediate_size: int = 3584
    num_hidden_layers: int = 24
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 256
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 16
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    full_attention_interval: int = 4

    def scaled(self, divisor: int) -> Sizes:
        """Return the sizes divided, of heads their numbers; at least one period of layers remains."""
        layers = max(self.num_hidden_layers // divisor // 4, 1) * 4
        names = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
        heads = ("linear_num_key_heads", "linear_num_value_heads")
        divided = {name: max(getattr(self, name) // divisor, 1) for name in (*names, *heads)}
        divided["vocab_size"] = max(divided["vocab_size"], 256 + len(SPECIAL_TOKENS))
        return Sizes(**{**asdict(self), **divided, "num_hidden_layers": layers})


@dataclass(frozen=True)
class Tensor:
    """A tensor to be written, and where its values come from."""

    name: str
    shape: tuple[int, ...]
    draw: Draw

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


def normal(deviation: float) -> Draw:
    """Return a source of normally distributed values around 0."""
    return lambda rng, count: rng.standard_normal(count, dtype=np.float32) * np.float32(deviation)


def logarithm_of_uniform(low: float, high: float) -> Draw:
    """Return a source of A_log as such models are initialised."""
    return lambda rng, count: np.log(rng.uniform(low, high, count)).astype(np.float32)


def tensors_of(sizes: Sizes) -> Iterator[Tensor]:
    """Yield every tensor of the text model; the head is tied to the embedding."""
    hidden, ffn = sizes.hidden_size, sizes.intermediate_size

    def matrix(name: str, rows: int, columns: int) -> Tensor:
        return Tensor(f"{name}.weight", (rows, columns), normal(columns**-0.5))

    def norm(name: str, size: int) -> Tensor:
        return Tensor(f"{name}.weight", (size,), normal(0.1))

    yield Tensor("model.language_model.embed_tokens.weight", (sizes.vocab_size, hidden), normal(hidden**-0.5))
    yield norm("model.language_model.norm", hidden)
    for index in range(sizes.num_hidden_layers):
        layer = f"model.language_model.layers.{index}"
        yield norm(f"{layer}.input_layernorm", hidden)
        yield norm(f"{layer}.post_attention_layernorm", hidden)
        is_full = (index + 1) % sizes.full_attention_interval == 0
        yield from (attention if is_full else delta_net)(layer, sizes, matrix, norm)
        yield matrix(f"{layer}.mlp.gate_proj", ffn, hidden)
        yield matrix(f"{layer}.mlp.up_proj", ffn, hidden)
        yield matrix(f"{layer}.mlp.down_proj", hidden, ffn)


def attention(
    layer: str, sizes: Sizes, matrix: Callable[[str, int, int], Tensor], norm: Callable[[str, int], Tensor]
) -> Iterator[Tensor]:
    """Yield the tensors of an attention layer; q_proj has a gate for each query."""
    hidden, dim = sizes.hidden_size, sizes.head_dim
    q_size, kv_size = sizes.num_attention_heads * dim, sizes.num_key_value_heads * dim
    yield matrix(f"{layer}.self_attn.q_proj", 2 * q_size, hidden)
    yield matrix(f"{layer}.self_attn.k_proj", kv_size, hidden)
    yield matrix(f"{layer}.self_attn.v_proj", kv_size, hidden)
    yield matrix(f"{layer}.self_attn.o_proj", hidden, q_size)
    yield norm(f"{layer}.self_attn.q_norm", dim)
    yield norm(f"{layer}.self_attn.k_norm", dim)


def delta_net(
    layer: str, sizes: Sizes, matrix: Callable[[str, int, int], Tensor], norm: Callable[[str, int], Tensor]
) -> Iterator[Tensor]:
    """Yield the tensors of a Gated DeltaNet layer."""
    hidden, heads, width = sizes.hidden_size, sizes.linear_num_value_heads, sizes.linear_conv_kernel_dim
    values = heads * sizes.linear_value_head_dim
    channels = 2 * sizes.linear_num_key_heads * sizes.linear_key_head_dim + values
    attn = f"{layer}.linear_attn"
    yield matrix(f"{attn}.in_proj_qkv", channels, hidden)
    yield matrix(f"{attn}.in_proj_z", values, hidden)
    yield matrix(f"{attn}.in_proj_b", heads, hidden)
    yield matrix(f"{attn}.in_proj_a", heads, hidden)
    yield matrix(f"{attn}.out_proj", hidden, values)
    yield Tensor(f"{attn}.conv1d.weight", (channels, 1, width), normal(width**-0.5))
    yield Tensor(f"{attn}.A_log", (heads,), logarithm_of_uniform(1, 16))
    yield Tensor(f"{attn}.dt_bias", (heads,), normal(1.0))
    yield norm(f"{attn}.norm", sizes.linear_value_head_dim)


def write_safetensors(path: Path, tensors: list[Tensor], seed: int) -> None:
    """Write the tensors in bfloat16, drawing them piece by piece."""
    header: dict[str, Any] = {}
    end = 0
    for tensor in tensors:
        start, end = end, end + 2 * tensor.size
        header[tensor.name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(seed)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            write_values(file, tensor, rng)


def write_values(file: BinaryIO, tensor: Tensor, rng: np.random.Generator) -> None:
    """Write the upper halves of float32 values."""
    for start in range(0, tensor.size, CHUNK_VALUES):
        values = tensor.draw(rng, min(CHUNK_VALUES, tensor.size - start))
        file.write((values.view(np.uint32) >> 16).astype("<u2").tobytes())


def write_config(path: Path, sizes: Sizes) -> None:
    """Write config.json in the layout of the model's own."""
    rope = {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    }
    text = {
        "model_type": "qwen3_5_text",
        **asdict(sizes),
        "attn_output_gate": True,
        "attention_bias": False,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_parameters": rope,
        "max_position_embeddings": 262_144,
        "mamba_ssm_dtype": "float32",
        "dtype": "bfloat16",
        "eos_token_id": 256,
    }
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
        "tie_word_embeddings": True,
    }
    path.write_text(json.dumps(config, indent=2))


def write_tokenizer(directory: Path) -> None:
    """Write a tokenizer whose tokens are the 256 bytes, and the special tokens of the model."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": CHAT_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2))


def main() -> None:
    """Write the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--scale", type=int, default=1, help="divide the sizes by this")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sizes = Sizes().scaled(arguments.scale)
    arguments.out.mkdir(parents=True, exist_ok=True)
    tensors = list(tensors_of(sizes))
    write_safetensors(arguments.out / "model.safetensors", tensors, arguments.seed)
    write_config(arguments.out / "config.json", sizes)
    write_tokenizer(arguments.out)
    print(f"{arguments.out}: {sum(tensor.size for tensor in tensors):,} parameters")


if __name__ == "__main__":
    main()
