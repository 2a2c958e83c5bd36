from __future__ import annotations

from typing import Any

import pytest

from octavo import PoolingParams, RequestError, RequestOutputKind


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("dimensions", 0, "at least 1"),
        ("dimensions", -1, "at least 1"),
        ("dimensions", True, "at least 1"),
        ("dimensions", 1.5, "at least 1"),
        ("use_activation", 1, "True, False or None"),
        ("skip_reading_prefix_cache", "yes", "True, False or None"),
        ("task", "classify", "there is no other"),
        ("output_kind", RequestOutputKind.DELTA, "FINAL_ONLY"),
        ("step_tag_id", 5, "leave it out"),
        ("returned_token_ids", [1], "leave it out"),
        ("normalize", True, "use_activation"),
        ("pooling_type", "mean", r"LLM\(model, pooling_type"),
        ("truncate_prompt_tokens", 5, "shorten the prompt"),
    ],
)
def test_a_value_that_cannot_be_served_is_named(name: str, value: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        PoolingParams(**{name: value})
    assert refused.value.parameter == name


@pytest.mark.parametrize("name", ["temperature", "n", "max_tokens", "logprobs"])
def test_parameters_of_generation_are_sent_where_they_belong(name: str) -> None:
    with pytest.raises(TypeError, match=f"no {name}: it belongs to SamplingParams"):
        PoolingParams(**{name: 1})


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(TypeError, match="dimension"):
        PoolingParams(dimension=5)  # type: ignore[call-arg]


def test_a_copy_shares_nothing_that_changes() -> None:
    params = PoolingParams(dimensions=5, task="embed")
    copy = params.clone()
    copy.dimensions = 6
    assert (params.dimensions, copy.task) == (5, "embed")
