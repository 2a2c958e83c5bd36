"""Tensor names: Hugging Face's and GGUF's, to the stable names a Program uses.

A stable name is Hugging Face's without the prefix of the decoder, for example `layers.3.mlp.gate_proj.weight`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from octavo.errors import ModelLoadError

_MAX_LISTED = 6

_HF_PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.")
_HF_IGNORED = re.compile(
    r"(^|\.)(vision_tower|vision_model|visual|multi_modal_projector|mtp)\."  # parts of a model that text does not use
    r"|\.rotary_emb\.inv_freq$"  # saved by old versions; computed from the config
)

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
}
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
            return name[len(prefix) :]
    return name


def stable_name_from_gguf(name: str, *, sandwich: bool) -> str | None:
    """Return the stable name, or None for a tensor that is not a weight. An unknown name is returned as it is.

    `sandwich`: whether the model has norms after its sub-layers; the name `ffn_norm` depends on it.
    """
    if name in _GGUF_IGNORED:
        return None
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None:
        return _GGUF_TOP.get(name, name)
    layer, role, kind = match.groups()
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
        f"{len(names)} tensors are {kind} ({_listed(names)})"
        for kind, names in (("missing", missing), ("unexpected", unexpected))
        if names
    ]
    if problems:
        raise ModelLoadError(f"{source}: {' and '.join(problems)}; the config does not describe these weights")


def _listed(names: list[str]) -> str:
    rest = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")
