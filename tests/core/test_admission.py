from __future__ import annotations

from typing import Any

import pytest
from core_helpers import FULL, Engine, make_config, make_manager, make_request

from octavo.core.admission import AdmissionPolicy
from octavo.errors import RequestError


def make_policy(num_blocks: Any = 8, windows: tuple = (FULL,), share: float = 1.0, **config: Any) -> AdmissionPolicy:
    return AdmissionPolicy(make_config(**config), make_manager(num_blocks, windows, share=share))


def test_a_fitting_request_keeps_its_max_tokens() -> None:
    assert make_policy().check_fits(10, 22) == 22


def test_the_refusal_has_the_numbers_and_the_ways_out() -> None:
    with pytest.raises(RequestError) as refused:
        make_policy().check_fits(10, 23)
    message = str(refused.value)
    for number in ("10 + 23 = 33 tokens", "9 blocks", "8 blocks", "32 tokens", "at most 22", "kv_cache_memory_bytes"):
        assert number in message
    assert (refused.value.parameter, refused.value.value) == ("max_tokens", 23)


def test_the_refusal_tells_the_number_that_was_asked_for_and_what_counts_of_it() -> None:
    with pytest.raises(RequestError, match=r"10 \+ 500 tokens, 64 of which max_model_len lets count, and") as refused:
        make_policy().check_fits(10, 500)
    assert "16 blocks" in str(refused.value)
    assert (refused.value.parameter, refused.value.value) == ("max_tokens", 500)


def test_a_prompt_that_fills_the_cache_has_to_be_shortened() -> None:
    with pytest.raises(RequestError, match="shorten the prompt") as refused:
        make_policy().check_fits(32, None)
    assert refused.value.parameter == "prompt"


def test_no_max_tokens_means_as_many_as_fit() -> None:
    assert make_policy().check_fits(10, None) == 22
    assert make_policy(max_model_len=20).check_fits(10, None) == 10


def test_max_tokens_ends_at_max_model_len() -> None:
    assert make_policy(max_model_len=20).check_fits(10, 500) == 10


@pytest.mark.parametrize("prompt_len", [0, 20, 21])
def test_prompts_without_room_in_max_model_len_are_refused(prompt_len: int) -> None:
    with pytest.raises(RequestError) as refused:
        make_policy(max_model_len=20).check_fits(prompt_len, 1)
    assert refused.value.value == prompt_len


def test_a_window_group_needs_no_more_than_its_window() -> None:
    assert make_policy((16, 3), (FULL, 5)).max_request_tokens == 64
    assert make_policy((16, 2), (FULL, 5)).max_request_tokens == 8


def test_without_chunks_a_window_group_needs_the_whole_prompt() -> None:
    policy = make_policy((16, 3), (FULL, 5), enable_chunked_prefill=False, max_num_batched_tokens=64)
    assert policy.max_request_tokens == 12


def test_the_ledger_limits_the_sum_over_groups() -> None:
    assert make_policy((8, 8), (FULL, FULL), share=0.5).max_request_tokens == 16


@pytest.mark.parametrize("windows", [(FULL,), (5,), (FULL, 5), (1, 9)], ids=str)
@pytest.mark.parametrize("chunked", [True, False])
def test_the_longest_request_that_is_accepted_reaches_its_end(windows: tuple, chunked: bool) -> None:
    config: dict[str, Any] = {"enable_chunked_prefill": chunked, "max_num_batched_tokens": 64}
    engine = Engine(num_blocks=4, windows=windows, **config)
    longest = engine.scheduler.admission.max_request_tokens
    for prompt_len in (1, 3, longest - 1):
        engine.add(make_request(f"r{prompt_len}", range(prompt_len), max_tokens=longest - prompt_len, ignore_eos=True))
        engine.finish()
        assert len(engine.tokens(f"r{prompt_len}")) == longest - prompt_len
