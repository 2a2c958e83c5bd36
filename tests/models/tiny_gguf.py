"""Writes a tiny checkpoint as a GGUF file, as the usual converter would, with the gguf library."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from tiny_models import TINY_DIR, read_config

from octavo.formats.safetensors import open_safetensors_dir

_ROLES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_PRE_NORMS = {"post_attention_layernorm": "ffn_norm"}
_SANDWICH_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def write_tiny_gguf(
    path: Path, name: str, arch: str, *, matrix_type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32
) -> Path:
    """Write checkpoint `name` as architecture `arch`."""
    config = read_config(name)
    writer = gguf.GGUFWriter(path, arch)
    _add_metadata(writer, config)
    for tensor in open_safetensors_dir(TINY_DIR / name).values():
        values = tensor.data.view(np.float32).reshape(tensor.shape)
        if arch == "gemma3" and tensor.name.endswith("norm.weight"):
            values = values + 1
        if arch == "llama" and "q_proj" in tensor.name:
            values = permute(values, config["num_attention_heads"])
        if arch == "llama" and "k_proj" in tensor.name:
            values = permute(values, config["num_key_value_heads"])
        kind = matrix_type if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(_gguf_name(tensor.name, arch), gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def permute(values: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Interleave the halves of each head, as the converter does for the llama family."""
    split = values.reshape(num_heads, 2, len(values) // num_heads // 2, *values.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(values.shape))


def _gguf_name(name: str, arch: str) -> str:
    if name in _TOP:
        return _TOP[name]
    layer, role, kind = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name).groups()
    roles = {**_ROLES, **(_SANDWICH_NORMS if arch == "gemma3" else _PRE_NORMS)}
    return f"blk.{layer}.{roles[role]}.{kind}"


def _add_metadata(writer: gguf.GGUFWriter, config: dict) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if "rope_parameters" in config:
        full = config["rope_parameters"].get("full_attention", config["rope_parameters"])
        writer.add_rope_freq_base(full["rope_theta"])
        writer.add_rope_scaling_type(gguf.RopeScalingType(full["rope_type"]))
        writer.add_rope_scaling_factor(full["factor"])
        if full["rope_type"] == "yarn":
            writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
    else:
        writer.add_rope_freq_base(config["rope_theta"])
    if (config.get("rope_scaling") or {}).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_divisors(config))
    if config["model_type"] == "gemma3_text":
        writer.add_sliding_window(config["sliding_window"])


def _llama3_divisors(config: dict) -> npt.NDArray[np.float32]:
    """Return by how much each frequency is divided, computed pair by pair."""
    scaling = config["rope_scaling"]
    divisors = []
    for pair in range(config["head_dim"] // 2):
        frequency = config["rope_theta"] ** (-2 * pair / config["head_dim"])
        wavelength = 2 * np.pi / frequency
        turns = scaling["original_max_position_embeddings"] / wavelength
        if turns < scaling["low_freq_factor"]:
            divisors.append(scaling["factor"])
        elif turns > scaling["high_freq_factor"]:
            divisors.append(1.0)
        else:
            span = scaling["high_freq_factor"] - scaling["low_freq_factor"]
            smooth = (turns - scaling["low_freq_factor"]) / span
            divisors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(divisors, dtype=np.float32)
