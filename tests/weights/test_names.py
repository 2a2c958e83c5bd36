"""Tensor names of both kinds of file, and what a mismatch says."""

from __future__ import annotations

import pytest

from octavo.errors import ModelLoadError
from octavo.weights.names import check_names, stable_name_from_gguf, stable_name_from_hf


@pytest.mark.parametrize("prefix", ["model.", "model.language_model.", "language_model.model.", ""])
def test_decoder_prefixes_are_dropped(prefix: str) -> None:
    stable = "layers.3.self_attn.q_proj.weight"
    assert stable_name_from_hf(prefix + stable) == stable


@pytest.mark.parametrize("name", ["lm_head.weight", "language_model.lm_head.weight"])
def test_head_has_one_stable_name(name: str) -> None:
    assert stable_name_from_hf(name) == "lm_head.weight"


@pytest.mark.parametrize(
    "name",
    [
        "vision_tower.vision_model.embeddings.patch_embedding.weight",
        "model.visual.blocks.0.attn.qkv.weight",
        "multi_modal_projector.mm_input_projection_weight",
        "model.vision_tower.vision_model.post_layernorm.weight",
        "mtp.fc.weight",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
    ],
)
def test_tensors_that_text_does_not_need_have_no_stable_name(name: str) -> None:
    assert stable_name_from_hf(name) is None


@pytest.mark.parametrize(
    ("name", "stable"),
    [
        ("block_sparse_moe.gate.weight", "mlp.gate.weight"),
        ("block_sparse_moe.experts.11.w1.weight", "mlp.experts.11.gate_proj.weight"),
        ("block_sparse_moe.experts.11.w2.weight", "mlp.experts.11.down_proj.weight"),
        ("block_sparse_moe.experts.11.w3.weight", "mlp.experts.11.up_proj.weight"),
        ("block_sparse_moe.router.layer.weight", "mlp.gate.weight"),
        ("block_sparse_moe.input_linear.weight", "mlp.experts.gate_up_proj.weight"),
        ("block_sparse_moe.output_linear.weight", "mlp.experts.down_proj.weight"),
        ("mlp.experts.gate_up_proj", "mlp.experts.gate_up_proj"),
    ],
)
def test_experts_have_the_same_names_in_all_families(name: str, stable: str) -> None:
    assert stable_name_from_hf(f"model.layers.2.{name}") == f"layers.2.{stable}"


@pytest.mark.parametrize(
    ("name", "stable"),
    [
        ("token_embd.weight", "embed_tokens.weight"),
        ("output_norm.weight", "norm.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.12.attn_q.weight", "layers.12.self_attn.q_proj.weight"),
        ("blk.12.attn_q.bias", "layers.12.self_attn.q_proj.bias"),
        ("blk.0.attn_k_norm.weight", "layers.0.self_attn.k_norm.weight"),
        ("blk.0.ffn_down.weight", "layers.0.mlp.down_proj.weight"),
        ("blk.0.ffn_gate_inp.weight", "layers.0.mlp.gate.weight"),
        ("blk.0.ffn_gate_exps.weight", "layers.0.mlp.experts.gate_proj.weight"),
        ("blk.0.ffn_down.7.weight", "layers.0.mlp.experts.7.down_proj.weight"),
        ("blk.0.ffn_up_shexp.weight", "layers.0.mlp.shared_expert.up_proj.weight"),
        ("blk.0.ffn_norm_exps.weight", "blk.0.ffn_norm_exps.weight"),
        ("blk.0.ssm_a", "layers.0.linear_attn.decay"),
        ("blk.0.ssm_dt.bias", "layers.0.linear_attn.dt_bias"),
        ("blk.0.ssm_conv1d.weight", "layers.0.linear_attn.conv1d.weight"),
        ("blk.0.post_attention_norm.weight", "layers.0.post_attention_layernorm.weight"),
        ("something.else", "something.else"),
        ("rope_freqs.weight", None),
    ],
)
def test_gguf_names(name: str, stable: str | None) -> None:
    assert stable_name_from_gguf(name, sandwich=False) == stable


@pytest.mark.parametrize(
    ("sandwich", "role"), [(False, "post_attention_layernorm"), (True, "pre_feedforward_layernorm")]
)
def test_place_of_the_ffn_norm_depends_on_the_block(sandwich: bool, role: str) -> None:
    assert stable_name_from_gguf("blk.1.ffn_norm.weight", sandwich=sandwich) == f"layers.1.{role}.weight"


def test_equal_names_pass_and_a_head_beside_a_tied_embedding_is_harmless() -> None:
    check_names(["a", "b"], ["b", "a", "lm_head.weight"], "model")


def test_error_lists_missing_and_unexpected_tensors() -> None:
    with pytest.raises(ModelLoadError, match=r"model: 1 tensor is missing \(b\) and 2 tensors are unexpected \(x, y\)"):
        check_names(["a", "b"], ["y", "a", "x"], "model")


def test_long_lists_are_cut() -> None:
    with pytest.raises(ModelLoadError, match=r"9 tensors are missing \(n0, n1, n2, n3, n4, n5 and 3 more\)"):
        check_names([f"n{i}" for i in range(9)], [], "model")
