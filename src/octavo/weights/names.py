"""Tensor names: Hugging Face's and GGUF's, to the stable names a Program uses.

A stable name is Hugging Face's without the prefix of the decoder, for example `layers.3.mlp.gate_proj.weight`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from octavo.errors import ModelLoadError
from octavo.wording import counted

_MAX_LISTED = 6

_HF_PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.")
_HF_IGNORED = re.compile(
    r"(?:^|\.)(vision_tower|vision_model|visual|multi_modal_projector|mtp)\."  # parts of a model that text does not use
    r"|\.rotary_emb\.inv_freq$"  # saved by old versions; computed from the config
)

_HF_ROLES = {
    "block_sparse_moe.gate.": "mlp.gate.",
    "block_sparse_moe.router.layer.": "mlp.gate.",
    "block_sparse_moe.input_linear.": "mlp.experts.gate_up_proj.",
    "block_sparse_moe.output_linear.": "mlp.experts.down_proj.",
    "block_sparse_moe.experts.": "mlp.experts.",
    ".w1.": ".gate_proj.",
    ".w2.": ".down_proj.",
    ".w3.": ".up_proj.",
}
"""Parts of names that Mixtral and Granite have of their own."""

_GGUF_TOP = {
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
}
_GGUF_IGNORED = frozenset({"rope_freqs.weight"})  # read with the config
_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_GGUF_LAYER_VECTORS = {"ssm_a": "linear_attn.decay", "ssm_dt.bias": "linear_attn.dt_bias"}
_GGUF_SANDWICH_LAYER = {
    **_GGUF_LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def stable_name_from_hf(name: str) -> str | None:
    """Return the stable name, or None for a tensor that text generation does not use."""
    if _HF_IGNORED.search(name):
        return None
    for prefix in _HF_PREFIXES:
        if name.startswith(prefix):
            name = name[len(prefix) :]
            break
    name = name.replace(".mlp.shared_experts.", ".mlp.shared_expert.")
    if ".block_sparse_moe." in name:
        for role, stable_role in _HF_ROLES.items():
            name = name.replace(role, stable_role)
    return name


def unused_part(name: str) -> str | None:
    """Return the part of a model, such as its vision tower, for whose sake a tensor has no stable name."""
    match = _HF_IGNORED.search(name)
    return match and match.group(1)


def stable_name_from_gguf(name: str, *, sandwich: bool) -> str | None:
    """Return the stable name, or None for a tensor that is not a weight. An unknown name is returned as it is.

    `sandwich`: whether the model has norms after its sub-layers; the name `ffn_norm` depends on it.
    """
    if name in _GGUF_IGNORED:
        return None
    expert = re.fullmatch(r"blk\.(\d+)\.ffn_(gate|up|down)\.(\d+)\.weight", name)  # of files before there were stacks
    if expert is not None:
        return f"layers.{expert[1]}.mlp.experts.{expert[3]}.{expert[2]}_proj.weight"
    match = re.fullmatch(r"blk\.(\d+)\.((\w+)\.(weight|bias)|\w+)", name)
    if match is None:
        return _GGUF_TOP.get(name, name)
    layer, whole, role, kind = match.groups()
    if whole in _GGUF_LAYER_VECTORS:
        return f"layers.{layer}.{_GGUF_LAYER_VECTORS[whole]}"
    stable_role = (_GGUF_SANDWICH_LAYER if sandwich else _GGUF_LAYER).get(role)
    return name if stable_role is None else f"layers.{layer}.{stable_role}.{kind}"


def check_names(needed: Collection[str], present: Iterable[str], source: str) -> None:
    """Compare a program's tensors with a checkpoint's. A head beside a tied embedding is harmless.

    Raises: ModelLoadError that lists missing and unexpected tensors.
    """
    present = set(present)
    missing = [name for name in needed if name not in present]
    unexpected = sorted(present.difference(needed, ("lm_head.weight",)))
    problems = [
        f"{counted(len(names), 'tensor')} {'is' if len(names) == 1 else 'are'} {kind} ({_listed(names)})"
        for kind, names in (("missing", missing), ("unexpected", unexpected))
        if names
    ]
    if problems:
        raise ModelLoadError(f"{source}: {' and '.join(problems)}; the config does not describe these weights")


def _listed(names: list[str]) -> str:
    rest = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")
