"""What the sampler tells the kernel about each logit row, and that one bad request harms no other."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.errors import GrammarError
from octavo.program.forward_batch import CHOICE_DTYPE, AllowedTokens, SampleBatch
from octavo.sampling import sampler as sampler_module
from octavo.sampling.sampler import ALL_ALLOWED, NO_LOGPROBS, SampledRows, Sampler, ScoredRows
from octavo.sampling_params import SamplingParams

VOCAB = 70


def make_rows(*entries: tuple[int, int, int], masks: AllowedTokens | None = None) -> SampledRows:
    rows, seats, positions = np.array(entries, np.int32).reshape(-1, 3).T
    return SampledRows(rows, seats, positions, masks)


def make_masks(bits: dict[int, list[int]], failures: dict[int, str] | None = None) -> AllowedTokens:
    return AllowedTokens(np.array(list(bits), np.int32), np.array(list(bits.values()), np.uint32), failures or {})


def make_sampler(**by_seat: SamplingParams) -> Sampler:
    sampler = Sampler(8, VOCAB)
    for name, params in by_seat.items():
        sampler.assign(int(name.removeprefix("seat")), params, prompt_len=2, seed=10 + int(name.removeprefix("seat")))
    return sampler


def edit_ranges(batch: SampleBatch) -> list[tuple[int, int]]:
    """First edit and number of edits of each row."""
    return batch.choices[["first_edit", "num_edits"]].tolist()


TOKENS = np.arange(8 * 16, dtype=np.int32).reshape(8, 16) % VOCAB


def test_each_row_gets_the_parameters_of_its_seat() -> None:
    sampler = make_sampler(
        seat5=SamplingParams(temperature=0.5, top_k=4, top_p=0.75, min_p=0.125, logprobs=3),
        seat1=SamplingParams(temperature=0),
    )
    batch, errors = sampler.build(make_rows((0, 1, 4), (9, 5, 7)), TOKENS)
    assert errors == {}
    assert batch.choices["row"].tolist() == [0, 9]
    assert batch.choices["temperature"].tolist() == [0.0, 0.5]
    assert batch.choices["top_k"].tolist() == [0, 4]
    assert batch.choices["top_p"].tolist() == [1.0, 0.75]
    assert batch.choices["min_p"].tolist() == [0.0, 0.125]
    assert batch.choices["seed"].tolist() == [11, 15]
    assert batch.choices["position"].tolist() == [4, 7]
    assert batch.choices["num_logprobs"].tolist() == [NO_LOGPROBS, 3]
    assert batch.choices["forced_token"].tolist() == [-1, -1]
    assert edit_ranges(batch) == [(0, 0), (0, 0)]
    assert batch.choices["allowed_row"].tolist() == [ALL_ALLOWED, ALL_ALLOWED]


def test_arrays_have_the_types_and_shapes_that_native_code_takes() -> None:
    sampler = make_sampler(seat0=SamplingParams(logit_bias={1: 1.0}, allowed_token_ids=[1]), seat1=SamplingParams())
    scored = ScoredRows(np.array([1, 2], np.int32), np.array([5, 6], np.int32), np.array([0, 1], np.int32))
    batch, _ = sampler.build(make_rows((0, 0, 4), (3, 1, 4)), TOKENS, scored)
    assert batch.choices.dtype == CHOICE_DTYPE
    assert batch.choices.shape == (4,)
    assert batch.choices.flags.c_contiguous
    assert edit_ranges(batch) == [(0, 1), (0, 0), (0, 0), (0, 0)]
    assert batch.max_logprobs == 1
    assert batch.allowed.dtype == np.uint32
    assert batch.allowed.shape == (1, 3)


def test_a_negative_seed_is_taken_as_its_64_bits() -> None:
    sampler = Sampler(1, VOCAB)
    sampler.assign(0, SamplingParams(), 1, -2)
    batch, _ = sampler.build(make_rows((0, 0, 1)), TOKENS)
    assert batch.choices["seed"].tolist() == [2**64 - 2]


def test_all_logprobs_means_the_width_of_the_logits() -> None:
    batch, _ = make_sampler(seat0=SamplingParams(logprobs=-1)).build(make_rows((0, 0, 2)), TOKENS)
    assert batch.choices["num_logprobs"].tolist() == [VOCAB]


def test_edits_of_several_rows_lie_behind_each_other() -> None:
    sampler = make_sampler(
        seat0=SamplingParams(logit_bias={3: 1.0, 4: 2.0}),
        seat1=SamplingParams(),
        seat2=SamplingParams(frequency_penalty=0.5),
    )
    batch, _ = sampler.build(make_rows((0, 0, 4), (1, 1, 4), (2, 2, 5)), TOKENS)
    assert edit_ranges(batch) == [(0, 2), (0, 0), (2, 3)]
    assert batch.edits["token_id"].tolist() == [3, 4, *TOKENS[2, 2:5].tolist()]
    assert batch.edits["penalty"].tolist() == [0, 0, 0.5, 0.5, 0.5]


def test_scored_rows_follow_the_sampled_ones_and_change_nothing() -> None:
    sampler = make_sampler(seat0=SamplingParams(temperature=0.7, logit_bias={3: 1.0}))
    scored = ScoredRows(np.array([7, 8], np.int32), np.array([40, 41], np.int32), np.array([2, 0], np.int32))
    batch, _ = sampler.build(make_rows((0, 0, 4)), TOKENS, scored)
    assert batch.choices["row"].tolist() == [0, 7, 8]
    assert batch.choices["forced_token"].tolist() == [-1, 40, 41]
    assert batch.choices["num_logprobs"].tolist() == [NO_LOGPROBS, 2, 0]
    assert batch.choices["temperature"].tolist()[1:] == [1.0, 1.0]
    assert edit_ranges(batch) == [(0, 1), (0, 0), (0, 0)]


def test_scored_rows_need_no_sampled_ones() -> None:
    scored = ScoredRows(np.array([0], np.int32), np.array([4], np.int32), np.array([0], np.int32))
    batch, errors = Sampler(2, VOCAB).build(make_rows(), TOKENS, scored)
    assert batch.choices["row"].tolist() == [0]
    assert errors == {}


def test_only_rows_with_allowed_tokens_have_a_mask() -> None:
    sampler = make_sampler(
        seat0=SamplingParams(), seat1=SamplingParams(allowed_token_ids=[0, 33]), seat2=SamplingParams(min_tokens=1)
    )
    batch, _ = sampler.build(make_rows((0, 0, 4), (1, 1, 4), (2, 2, 4)), TOKENS)
    assert batch.choices["allowed_row"].tolist() == [ALL_ALLOWED, 0, ALL_ALLOWED]
    assert batch.allowed.tolist() == [[1, 2, 0]]


def test_grammar_masks_are_cut_with_the_allowed_tokens() -> None:
    sampler = make_sampler(seat0=SamplingParams(), seat1=SamplingParams(allowed_token_ids=[0, 33]))
    masks = make_masks({0: [5, 0, 0], 1: [3, 2, 1]})
    batch, _ = sampler.build(make_rows((0, 0, 4), (1, 1, 4), masks=masks), TOKENS)
    assert batch.choices["allowed_row"].tolist() == [0, 1]
    assert batch.allowed.tolist() == [[5, 0, 0], [1, 2, 0]]
    assert masks.bits.tolist() == [[5, 0, 0], [3, 2, 1]]


def test_rows_without_a_grammar_stay_free_beside_one_that_has_it() -> None:
    sampler = make_sampler(
        seat0=SamplingParams(), seat1=SamplingParams(), seat2=SamplingParams(allowed_token_ids=[0, 33])
    )
    rows = make_rows((0, 0, 4), (1, 1, 4), (2, 2, 4), masks=make_masks({1: [3, 2, 1]}))
    batch, _ = sampler.build(rows, TOKENS)
    assert batch.choices["allowed_row"].tolist() == [ALL_ALLOWED, 0, 1]
    assert batch.allowed.tolist() == [[3, 2, 1], [1, 2, 0]]


def test_a_row_whose_grammar_allows_nothing_fails_with_its_reason() -> None:
    sampler = make_sampler(seat0=SamplingParams(), seat1=SamplingParams())
    masks = make_masks({0: [1, 0, 0], 1: [0, 0, 0]}, failures={1: "dead end"})
    _, errors = sampler.build(make_rows((0, 0, 4), (1, 1, 4), masks=masks), TOKENS)
    assert {row: str(error) for row, error in errors.items()} == {1: "dead end"}
    assert isinstance(errors[1], GrammarError)


def test_min_tokens_of_a_request_with_a_grammar_are_left_to_its_masks() -> None:
    sampler = make_sampler(seat0=SamplingParams(min_tokens=9, structured_outputs={"regex": "a"}))
    batch, _ = sampler.build(make_rows((0, 0, 4)), TOKENS)
    assert batch.edits is None


@pytest.mark.parametrize(
    "params",
    [SamplingParams(logit_bias={VOCAB: 1.0}), SamplingParams(allowed_token_ids=[VOCAB])],
    ids=["logit_bias", "allowed_token_ids"],
)
def test_a_request_that_cannot_be_sampled_fails_alone(params: SamplingParams) -> None:
    sampler = make_sampler(seat0=SamplingParams(logit_bias={3: 1.0}), seat1=params, seat2=SamplingParams(min_p=0.5))
    batch, errors = sampler.build(make_rows((0, 0, 4), (1, 1, 4), (2, 2, 4)), TOKENS)
    assert list(errors) == [1]
    assert "70 wide" in errors[1]
    assert batch.choices["row"].tolist() == [0, 1, 2]
    assert edit_ranges(batch) == [(0, 1), (0, 0), (0, 0)]
    assert batch.choices["min_p"].tolist() == [0.0, 0.0, 0.5]


def test_parameters_of_a_wrong_type_fail_with_their_first_row_and_go_with_the_request() -> None:
    params = SamplingParams()
    params.top_k = None  # type: ignore[assignment]
    sampler = make_sampler(seat0=params)
    _, errors = sampler.build(make_rows((0, 0, 4)), TOKENS)
    assert errors[0].startswith("TypeError")
    sampler.assign(0, SamplingParams(), 1, 0)
    assert sampler.build(make_rows((0, 0, 4)), TOKENS)[1] == {}


def test_an_exception_while_making_edits_is_reported_with_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object) -> None:
        raise ZeroDivisionError("injected")

    monkeypatch.setattr(sampler_module.TokenEdits, "at", fail)
    sampler = make_sampler(seat0=SamplingParams(min_tokens=1), seat1=SamplingParams())
    _, errors = sampler.build(make_rows((0, 0, 4), (1, 1, 4)), TOKENS)
    assert errors == {0: "ZeroDivisionError: injected"}


def test_plain_requests_never_reach_the_edits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sampler, "_edits_at", None)
    sampler = make_sampler(seat0=SamplingParams(temperature=0), seat1=SamplingParams(top_p=0.5, logprobs=2))
    _, errors = sampler.build(make_rows((0, 0, 4), (1, 1, 4)), TOKENS)
    assert errors == {}


def test_a_released_seat_keeps_nothing_of_its_request() -> None:
    sampler = make_sampler(seat3=SamplingParams(logit_bias={VOCAB: 1.0}, temperature=0.3, logprobs=4))
    sampler.release(3)
    batch, errors = sampler.build(make_rows((0, 3, 4)), TOKENS)
    assert errors == {}
    assert (batch.choices["temperature"].tolist(), batch.choices["num_logprobs"].tolist()) == ([0.0], [NO_LOGPROBS])


def test_the_same_seats_are_gathered_once_and_only_their_positions_change() -> None:
    sampler = make_sampler(seat0=SamplingParams(temperature=0.5), seat1=SamplingParams(logit_bias={3: 1.0}))
    rows = make_rows((0, 0, 4), (1, 1, 6))
    first, _ = sampler.build(rows, TOKENS)
    choices = first.choices
    later, _ = sampler.build(SampledRows(rows.rows, rows.seats, rows.positions + 1), TOKENS)
    assert later.choices is choices
    assert later.choices["position"].tolist() == [5, 7]
    assert edit_ranges(later) == [(0, 0), (0, 1)]


def test_seats_that_changed_hands_are_gathered_anew() -> None:
    sampler = make_sampler(seat0=SamplingParams(temperature=0.5, logprobs=2))
    rows = make_rows((0, 0, 4))
    sampler.build(rows, TOKENS)
    sampler.assign(0, SamplingParams(temperature=0.25), 1, 7)
    batch, _ = sampler.build(rows, TOKENS)
    assert (batch.choices["temperature"].tolist(), batch.choices["seed"].tolist()) == ([0.25], [7])
    assert batch.max_logprobs == NO_LOGPROBS


def test_masks_of_one_step_are_gone_in_the_next() -> None:
    sampler = make_sampler(seat0=SamplingParams())
    rows = make_rows((0, 0, 4))
    sampler.build(SampledRows(rows.rows, rows.seats, rows.positions, make_masks({0: [1, 1, 1]})), TOKENS)
    batch, _ = sampler.build(rows, TOKENS)
    assert batch.choices["allowed_row"].tolist() == [ALL_ALLOWED]
