"""Configs with experts in both kinds of file: which layers have them, how they are chosen, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
from test_gguf_config import make_file
from tiny_models import read_config

from octavo.errors import ModelLoadError
from octavo.models.base import DecoderSpec, SharedExpertSpec
from octavo.models.registry import spec_from_gguf, spec_from_hf
from octavo.program.moe_ops import Routing


def make_spec(base: str, *without: str, **changes: Any) -> DecoderSpec:
    """Read a tiny checkpoint's config with keys replaced, and some left out."""
    config = {**read_config(base), **changes}
    return spec_from_hf({key: value for key, value in config.items() if key not in without}, "config.json")


def experts_of(spec: DecoderSpec) -> list[str]:
    return [layer.ffn for layer in spec.layers]


def routing_of(spec: DecoderSpec) -> Routing:
    assert spec.moe is not None
    return spec.moe.routing


ROUTINGS = {
    "mixtral": Routing(4, 2, "softmax", renormalize=True),
    "qwen2_moe": Routing(8, 2, "softmax"),
    "qwen3_moe": Routing(8, 2, "softmax", renormalize=True),
    "qwen3_next": Routing(8, 2, "softmax", renormalize=True),
    "qwen3_5_moe": Routing(8, 2, "softmax", renormalize=True),
    "olmoe": Routing(7, 3, "softmax"),
    "granitemoe": Routing(5, 2, "topk_softmax"),
    "glm4_moe": Routing(12, 3, "sigmoid", renormalize=True, scale=1.5, num_groups=4, top_groups=2),
}


@pytest.mark.parametrize("name", ROUTINGS)
def test_each_family_routes_in_its_way(name: str) -> None:
    assert routing_of(make_spec(name)) == ROUTINGS[name]


def test_number_of_experts_has_two_names() -> None:
    assert make_spec("qwen3_moe", "num_experts", num_local_experts=8) == make_spec("qwen3_moe")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["moe", "dense", "moe"]),
        ({"mlp_only_layers": []}, ["moe", "moe", "moe"]),
        ({"mlp_only_layers": None, "decoder_sparse_step": 2}, ["dense", "moe", "dense"]),
        ({"mlp_only_layers": [2], "decoder_sparse_step": 3}, ["dense", "dense", "dense"]),
    ],
    ids=["listed", "none listed", "every second", "every third but it is listed"],
)
def test_dense_layers_are_listed_or_counted(changes: dict[str, Any], expected: list[str]) -> None:
    assert experts_of(make_spec("qwen3_moe", **changes)) == expected


def test_reading_a_config_does_not_change_it() -> None:
    listed = [2]
    make_spec("qwen3_moe", mlp_only_layers=listed, decoder_sparse_step=2)
    assert listed == [2]


def test_shared_expert_has_its_own_width() -> None:
    moe = make_spec("qwen2_moe").moe
    assert moe is not None
    assert (moe.ffn_size, moe.shared) == (48, SharedExpertSpec(80, is_gated=True))


def test_hybrid_without_dense_layers_need_not_state_their_width() -> None:
    assert make_spec("qwen3_5_moe", "intermediate_size").moe == make_spec("qwen3_5_moe").moe


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("qwen3_moe", {"num_experts_per_tok": 9}, "num_experts_per_tok cannot be: 9 experts per row .* of 8"),
        ("mixtral", {"num_local_experts": 0}, "num_local_experts is 0, expected an integer from 1"),
        ("mixtral", {"num_local_experts": None}, "num_local_experts is missing"),
        ("mixtral", {"num_local_experts": 60_000}, "num_local_experts is 60000: 3 layers .* more than 131072"),
        (
            "mixtral",
            {"num_local_experts": 70_000, "num_hidden_layers": 1},
            "num_local_experts is 70000: at most 65536 experts on a layer",
        ),
        ("qwen3_moe", {"moe_intermediate_size": "48"}, "moe_intermediate_size is '48', expected an integer"),
        ("qwen3_moe", {"mlp_only_layers": [-1]}, "mlp_only_layers is .*-1.*, expected a list of integers"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        ("qwen3_moe", {"norm_topk_prob": "yes"}, "norm_topk_prob is 'yes', expected true or false"),
        ("qwen2_moe", {"use_sliding_window": True}, "use_sliding_window is true: not supported"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv is set"),
        ("glm4_moe", {"n_group": 5}, "n_group cannot be: 12 experts are not 5 equal groups"),
        ("glm4_moe", {"topk_group": 5}, "n_group cannot be: 5 groups per row are to be chosen of 4"),
        ("glm4_moe", {"num_experts_per_tok": 7}, "n_group cannot be: 2 groups of 3 experts hold fewer than the 7"),
        ("granitemoe", {"logits_scaling": 0.0}, "logits_scaling is 0.0, expected a number"),
    ],
    ids=str,
)
def test_impossible_value_is_named(name: str, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelLoadError, match=rf"config\.json: {problem}"):
        make_spec(name, **changes)


def test_first_layers_of_glm_are_dense_and_its_shared_expert_has_no_gate() -> None:
    spec = make_spec("glm4_moe")
    assert experts_of(spec) == ["dense", "moe", "moe"]
    assert spec.moe is not None
    assert (spec.moe.choice_bias, spec.moe.shared) == (True, SharedExpertSpec(64, is_gated=False))


def test_glm_rotates_half_of_a_head_unless_told_otherwise() -> None:
    plain = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    assert make_spec("glm4_moe", **plain) == make_spec("glm4_moe")


def make_moe_file(path: Path, arch: str = "qwen3moe", *, count: int = 8, used: int = 2, num_layers: int = 2) -> Any:
    def adapt(writer: gguf.GGUFWriter) -> None:
        writer.add_expert_count(count)
        writer.add_expert_used_count(used)

    return make_file(path, arch, num_layers=num_layers, adapt=adapt)


def test_gguf_without_the_width_of_an_expert_has_that_of_all_a_row_takes(tmp_path: Path) -> None:
    moe = spec_from_gguf(make_moe_file(tmp_path, used=3)).moe
    assert moe is not None
    assert moe.ffn_size == 32


def test_gguf_of_llama_with_experts_is_mixtral(tmp_path: Path) -> None:
    assert routing_of(spec_from_gguf(make_moe_file(tmp_path, "llama"))) == Routing(8, 2, "softmax", renormalize=True)


@pytest.mark.parametrize(
    ("count", "used", "problem"),
    [
        (8, 9, "expert_used_count.* is 9: 9 experts per row .* of 8"),
        (8, 0, "expert_used_count.* is 0"),
        (1 << 16, 2, "expert_count.* is 65536: 3 layers .* more than 131072"),
        (70_000, 2, "expert_count.* is 70000: at most 65536 experts on a layer"),
    ],
    ids=["too many", "none", "more than memory", "too many for a layer"],
)
def test_impossible_experts_of_a_gguf_are_named(tmp_path: Path, count: int, used: int, problem: str) -> None:
    with pytest.raises(ModelLoadError, match=problem):
        spec_from_gguf(make_moe_file(tmp_path, count=count, used=used, num_layers=3))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"top_k": 9}, "9 experts per row are to be chosen of 8"),
        ({"top_k": 0}, "0 experts per row"),
        ({"num_groups": 3}, "8 experts are not 3 equal groups"),
        ({"num_groups": 4, "top_groups": 5}, "5 groups per row are to be chosen of 4"),
        ({"num_groups": 4, "top_groups": 1, "top_k": 3}, "1 groups of 2 experts hold fewer than the 3"),
        ({"num_groups": 8, "top_groups": 4}, "scored by their two best experts, but 8 groups have one each"),
    ],
    ids=["too many", "none", "unequal groups", "too many groups", "groups too small", "groups of one"],
)
def test_impossible_routing_says_what_is_wrong(change: dict[str, Any], problem: str) -> None:
    routing = Routing(**{"num_experts": 8, "top_k": 2, "scoring": "softmax", **change})
    assert problem in (routing.problem() or "")


def test_groups_of_one_may_be_scored_by_their_best() -> None:
    assert Routing(8, 2, "softmax", num_groups=8, top_groups=4, group_score="max").problem() is None
