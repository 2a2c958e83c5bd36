"""What a converter to GGUF does to mixtures of experts and to Granite, for `tiny_gguf.py`."""

from __future__ import annotations

import re
from collections.abc import Mapping

import gguf
import numpy as np
import numpy.typing as npt

Tensors = dict[str, npt.NDArray[np.float32]]

MOE_ROLES = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}
_MIXTRAL = {".w1.": ".gate_proj.", ".w2.": ".down_proj.", ".w3.": ".up_proj."}


def stack_experts(tensors: Mapping[str, npt.NDArray[np.float32]]) -> Tensors:
    """Return the tensors of a layer's experts as one for each role, under the names that Qwen has."""
    result: Tensors = {}
    stacks: dict[str, dict[int, npt.NDArray[np.float32]]] = {}
    for name, values in tensors.items():
        stable = name
        if ".block_sparse_moe." in name:
            stable = name.replace("block_sparse_moe.router.layer", "mlp.gate").replace("block_sparse_moe", "mlp")
            for own, usual in _MIXTRAL.items():
                stable = stable.replace(own, usual)
        expert = re.fullmatch(r"(.+\.mlp\.experts)\.(\d+)\.(\w+)\.weight", stable)
        if expert is not None:
            stacks.setdefault(f"{expert[1]}.{expert[3]}.weight", {})[int(expert[2])] = values
        elif stable.endswith("mlp.input_linear.weight"):
            half = values.shape[1] // 2
            prefix = stable.removesuffix("input_linear.weight")
            result[f"{prefix}experts.gate_proj.weight"] = np.ascontiguousarray(values[:, :half])
            result[f"{prefix}experts.up_proj.weight"] = np.ascontiguousarray(values[:, half:])
        elif stable.endswith("mlp.output_linear.weight"):
            result[stable.replace("output_linear", "experts.down_proj")] = values
        else:
            result[stable] = values[0] if stable.endswith("shared_expert_gate.weight") else values
    for name, stack in stacks.items():
        result[name] = np.stack([stack[expert] for expert in range(len(stack))])
    return result


def add_moe_metadata(writer: gguf.GGUFWriter, config: dict) -> None:
    count = config.get("num_experts", config.get("num_local_experts"))
    if count is not None:
        writer.add_expert_count(count)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if "logits_scaling" in config:
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
