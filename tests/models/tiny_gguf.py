"""Writes a tiny checkpoint as a GGUF file, as the usual converter would, with the gguf library."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from tiny_gguf_moe import MOE_ROLES, add_moe_metadata, stack_experts
from tiny_models import TINY_DIR, as_floats, read_config

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
    **MOE_ROLES,
}
_PRE_NORMS = {"post_attention_layernorm": "ffn_norm"}
_SANDWICH_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_QWEN35_ROLES = {
    "post_attention_layernorm": "post_attention_norm",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
_QWEN35_VECTORS = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}
_FUSED_ROLES = {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
_GLM4_ROLES = {
    "mlp.gate_up_proj": "ffn_up",
    "post_self_attn_layernorm": "post_attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "post_mlp_layernorm": "post_ffw_norm",
}
_ARCH_ROLES = {
    "gemma2": _SANDWICH_NORMS,
    "gemma3": _SANDWICH_NORMS,
    "glm4": _GLM4_ROLES,
    "olmo2": _SANDWICH_NORMS,
    "phi3": {**_PRE_NORMS, **_FUSED_ROLES},
    "qwen35": _QWEN35_ROLES,
    "qwen35moe": _QWEN35_ROLES,
}
_HYBRID = ("qwen35", "qwen35moe")
_PERMUTED = ("granite", "granitemoe", "llama", "smollm3")
_NORMS_AROUND_ZERO = ("gemma", "gemma2", "gemma3", *_HYBRID)
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
    tensors = open_safetensors_dir(TINY_DIR / name).values()
    stacked = stack_experts({tensor.name: as_floats(tensor) for tensor in tensors})
    for tensor_name, stored in stacked.items():
        values = stored
        if _is_norm_around_zero(tensor_name, arch):
            values = values + 1
        if arch in _HYBRID:
            values = _as_qwen35(tensor_name, values, config)
        if arch in _PERMUTED and "q_proj" in tensor_name:
            values = permute(values, config["num_attention_heads"])
        if arch in _PERMUTED and "k_proj" in tensor_name:
            values = permute(values, config["num_key_value_heads"])
        is_matrix = values.ndim >= 2 and not tensor_name.endswith("mlp.gate.weight")
        kind = matrix_type if is_matrix else gguf.GGMLQuantizationType.F32
        writer.add_tensor(_gguf_name(tensor_name, arch), gguf.quants.quantize(values, kind), raw_dtype=kind)
    if arch in _HYBRID:
        _add_qwen35(writer, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _is_norm_around_zero(name: str, arch: str) -> bool:
    """Whether the checkpoint stores w - 1, and the converter w."""
    return arch in _NORMS_AROUND_ZERO and name.endswith("norm.weight") and "linear_attn" not in name


def _as_qwen35(name: str, values: npt.NDArray[np.float32], config: dict) -> npt.NDArray[np.float32]:
    """Change a tensor as the converter does: value heads in tiled order, A_log as the decay, taps as a matrix."""
    values = values.squeeze(1) if "conv1d" in name else values
    values = -np.exp(values) if name.endswith("A_log") else values
    key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    heads = np.arange(value_heads).reshape(key_heads, -1).T.reshape(-1)
    dims = (heads[:, None] * config["linear_value_head_dim"] + np.arange(config["linear_value_head_dim"])).reshape(-1)
    if re.search(r"in_proj_[ab]|A_log|dt_bias", name):
        return np.ascontiguousarray(values[heads])
    if "in_proj_z" in name:
        return np.ascontiguousarray(values[dims])
    if "out_proj" in name:
        return np.ascontiguousarray(values[:, dims])
    if "in_proj_qkv" in name or "conv1d" in name:
        first = 2 * key_heads * config["linear_key_head_dim"]
        return np.concatenate([values[:first], values[first:][dims]])
    return values


def _add_qwen35(writer: gguf.GGUFWriter, config: dict) -> None:
    """Add the recurrent layers' sizes, and a draft model's block, which is one more than the model's."""
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
    writer.add_uint32(f"{writer.arch}.full_attention_interval", 4)
    writer.add_uint32(f"{writer.arch}.nextn_predict_layers", 1)
    writer.add_rope_dimension_count(int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"]))
    draft = config["num_hidden_layers"]
    for role in ("attn_norm", "nextn.enorm"):
        writer.add_tensor(f"blk.{draft}.{role}.weight", np.ones(config["hidden_size"], dtype=np.float32))


def permute(values: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Interleave the halves of each head, as the converter does for the llama family."""
    split = values.reshape(num_heads, 2, len(values) // num_heads // 2, *values.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(values.shape))


def _gguf_name(name: str, arch: str) -> str:
    if name in _TOP:
        return _TOP[name]
    vector = re.fullmatch(r"model\.layers\.(\d+)\.(linear_attn\.\w+)", name)
    if vector is not None:
        return f"blk.{vector[1]}.{_QWEN35_VECTORS[vector[2]]}"
    layer, role, kind = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name).groups()
    roles = {**_ROLES, **_ARCH_ROLES.get(arch, _PRE_NORMS)}
    return f"blk.{layer}.{roles[role]}.{kind}"


def _add_metadata(writer: gguf.GGUFWriter, config: dict) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"] + config["model_type"].startswith("qwen3_5"))
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if "rope_parameters" in config:
        full = config["rope_parameters"].get("full_attention", config["rope_parameters"])
        writer.add_rope_freq_base(full["rope_theta"])
        if full["rope_type"] != "default":
            writer.add_rope_scaling_type(gguf.RopeScalingType(full["rope_type"]))
            writer.add_rope_scaling_factor(full["factor"])
        if full["rope_type"] == "yarn":
            writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
    else:
        writer.add_rope_freq_base(config["rope_theta"])
    if (config.get("rope_scaling") or {}).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_divisors(config))
    if (config.get("rope_scaling") or {}).get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config["rope_scaling"]["factor"])
    add_moe_metadata(writer, config)
    if config["model_type"] in ("gemma2", "gemma3_text", "olmo3", "phi3"):
        writer.add_sliding_window(config["sliding_window"] or 0)
    if config["model_type"] == "olmo3":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    if config["model_type"] == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if "partial_rotary_factor" in config:
        writer.add_rope_dimension_count(int(config["head_dim"] * config["partial_rotary_factor"]))
    if (config.get("rope_scaling") or {}).get("rope_type") == "longrope":
        _add_longrope(writer, config)


def _add_longrope(writer: gguf.GGUFWriter, config: dict) -> None:
    """Add the divisors as tensors, and the factor on cosines and sines."""
    original = config["original_max_position_embeddings"]
    stretch = config["max_position_embeddings"] / original
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_rope_scaling_attn_factors(np.sqrt(1 + np.log(stretch) / np.log(original)))
    for kind in ("long", "short"):
        factors = np.array(config["rope_scaling"][f"{kind}_factor"], dtype=np.float32)
        writer.add_tensor(f"rope_factors_{kind}.weight", factors)


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
