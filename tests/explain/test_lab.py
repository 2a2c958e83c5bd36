"""The laboratory: old policies do what they say, experiments count what happened, and answers never change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from octavo.cli.main import main
from octavo.errors import ConfigError
from octavo.explain.lab import batching, kv_cache, prefix
from octavo.explain.lab.compare import LabSettings
from octavo.explain.lab.experiments import EXPERIMENTS
from octavo.explain.lab.policies import (
    StaticBatching,
    exact_length,
    longest_allowed,
    next_power_of_two,
    reservation,
)
from octavo.explain.lab.report import LabReport
from octavo.explain.lab.session import LabEngine, LabRequest, LabRun
from octavo.explain.views import new_figure, save_figure
from octavo.frontend.build import EnginePolicies

MODEL = str(Path(__file__).resolve().parents[1] / "data" / "tiny" / "llama")
LONGER = {"hf_overrides": {"max_position_embeddings": 2048}}
"""The tiny model takes as long requests as a real one."""
SHORT = {"max_model_len": 512}


def make_settings(num_requests: int | None = None, **options: Any) -> LabSettings:
    return LabSettings(MODEL, {"num_threads": 1, **options}, num_requests)


def make_requests(engine: LabEngine, lengths: Sequence[int]) -> list[LabRequest]:
    return [LabRequest(engine.random_prompt(8, index), length) for index, length in enumerate(lengths)]


def run_with(policies: EnginePolicies, lengths: Sequence[int], **options: Any) -> LabRun:
    settings = {"num_threads": 1, "max_model_len": 64, "max_num_seqs": 3, **options}
    with LabEngine(MODEL, settings, policies) as engine:
        return engine.run(make_requests(engine, lengths))


def run_experiment(name: str, num_requests: int | None = None, **options: Any) -> LabReport:
    return EXPERIMENTS[name](make_settings(num_requests, **options))


@cache
def short_report(name: str) -> LabReport:
    return run_experiment(name, 6, **SHORT)


def test_nobody_joins_a_static_batch() -> None:
    run = run_with(EnginePolicies(admission=StaticBatching), [2, 4, 6, 3, 1])
    assert [sample.num_running for sample in run.samples] == [3, 3, 2, 2, 1, 1, 2, 1, 1]


def test_seats_of_a_continuous_batch_are_refilled_at_once() -> None:
    run = run_with(EnginePolicies(), [2, 4, 6, 3, 1])
    assert [sample.num_running for sample in run.samples] == [3, 3, 3, 3, 3, 1]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(longest_allowed, 64), (next_power_of_two, 16), (exact_length, 16)],
    ids=["longest_allowed", "next_power_of_two", "exact_length"],
)
def test_a_reservation_is_taken_at_once_and_kept(tokens: Any, expected: int) -> None:
    run = run_with(EnginePolicies(cache_manager=reservation(tokens, 64)), [5])
    assert {sample.allocated for sample in run.samples} == {expected}


def test_a_power_of_two_is_reserved_for_the_answer_alone() -> None:
    run = run_with(EnginePolicies(cache_manager=reservation(next_power_of_two, 64)), [33])
    assert {sample.allocated for sample in run.samples} == {64}


def test_reservations_limit_who_runs_and_paging_does_not() -> None:
    options = {"num_gpu_blocks_override": 8, "max_num_seqs": 8}
    reserved = run_with(EnginePolicies(cache_manager=reservation(longest_allowed, 64)), [6] * 6, **options)
    paged = run_with(EnginePolicies(), [6] * 6, **options)
    assert max(sample.num_running for sample in reserved.samples) == 2
    assert max(sample.num_running for sample in paged.samples) == 4  # and a block for each to go on with
    assert reserved.num_preemptions == 0


def test_samples_split_the_room_into_filled_to_come_and_never_filled() -> None:
    run = run_with(EnginePolicies(cache_manager=reservation(longest_allowed, 64)), [4])
    assert [(s.allocated, s.stored, s.to_come) for s in run.samples] == [
        (64, 8, 3),
        (64, 9, 2),
        (64, 10, 1),
        (64, 11, 0),
    ]


def test_padding_is_computed_and_thrown_away() -> None:
    with LabEngine(MODEL, {"num_threads": 1, "max_model_len": 64}) as engine:
        (request,) = make_requests(engine, [3])
        plain = engine.run([request])
        padded = engine.run([LabRequest(request.prompt_token_ids, 3, num_padding=2)])
    assert padded.token_ids == plain.token_ids
    assert [sample.num_useful for sample in padded.samples] == [1, 1, 1, 0, 0]


def test_requests_arrive_when_enough_was_shown() -> None:
    with LabEngine(MODEL, {"num_threads": 1, "max_model_len": 64}) as engine:
        first, second = make_requests(engine, [6, 1])
        run = engine.run(
            [
                LabRequest(first.prompt_token_ids, 6, is_streamed=True),
                LabRequest(second.prompt_token_ids, 1, arrives_after=2),
            ]
        )
    assert run.samples[0].num_running == 1
    assert len(run.stamps) == 1
    assert run.stamps[0] == sorted(run.stamps[0])


def test_static_batching_computes_at_least_twice_the_rows_of_continuous_batching() -> None:
    figures = run_experiment("batching").policies
    rows = {name: sum(entry["computed_requests"]) for name, entry in figures.items()}
    assert rows["static"] >= 2 * rows["continuous"]
    assert rows["no-refill"] == rows["continuous"]
    assert figures["no-refill"]["num_steps"] >= 1.5 * figures["continuous"]["num_steps"]
    assert figures["continuous"]["occupancy_share"] > 1.5 * figures["static"]["occupancy_share"]


def test_paged_memory_wastes_less_than_4_percent_and_reservation_more_than_60() -> None:
    figures = run_experiment("memory", **LONGER).policies
    assert figures["paged"]["waste_share"] < 0.04
    assert figures["reserve-max"]["waste_share"] > 0.60
    assert figures["paged"]["mean_requests"] > figures["reserve-exact"]["mean_requests"]
    for entry in figures.values():
        assert entry["used_share"] + entry["to_come_share"] + entry["internal_share"] == pytest.approx(1.0)


def test_without_a_cache_rows_grow_with_the_square_of_the_length() -> None:
    length = 20
    figures = run_experiment("kv-cache", length).policies
    assert figures["cache"]["rows_computed"] == kv_cache.PROMPT_LEN + length - 1
    assert figures["no-cache"]["rows_computed"] == sum(kv_cache.PROMPT_LEN + index for index in range(length))


def test_a_shared_prefix_is_computed_once_per_batch_that_starts_together() -> None:
    figures = run_experiment("prefix").policies
    prompts = prefix.NUM_REQUESTS * (prefix.SHARED_LEN + prefix.OWN_LEN)
    assert figures["off"]["rows_computed"] == prompts + prefix.NUM_REQUESTS * (prefix.OUTPUT_LEN - 1)
    saved = figures["off"]["rows_computed"] - figures["on"]["rows_computed"]
    assert saved == round(figures["on"]["cached_share"] * prompts)
    assert figures["on"]["most_blocks"] < figures["off"]["most_blocks"]


def test_larger_blocks_waste_more_and_find_less() -> None:
    figures = list(run_experiment("block-size").policies.values())
    waste, found = ([entry[name] for entry in figures] for name in ("waste_share", "cached_share"))
    assert waste == sorted(waste)
    assert found == sorted(found, reverse=True)


def test_chunks_keep_steps_short() -> None:
    figures = run_experiment("chunked-prefill", 2, **LONGER).policies
    assert figures["off"]["largest_step"] >= 1024
    assert figures["on"]["largest_step"] <= 512


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_every_policy_gives_the_same_answers(name: str) -> None:
    report = short_report(name)
    assert report.summary.endswith("All gave the same answers, token for token.")


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_json_is_keyed_by_policy_and_holds_what_the_table_shows(name: str) -> None:
    report = short_report(name)
    document = json.loads(report.to_json())
    for policy, figures in document.items():
        assert {"output_tokens_per_s", *report.columns} <= figures.keys()
        assert policy in report.table


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_every_experiment_draws_its_plot(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plot.svg"
    figure = new_figure(4.0, 3.0)
    short_report(name).draw(figure)
    save_figure(figure, str(path))
    assert path.read_text(encoding="utf-8").lstrip().startswith("<?xml")


def test_the_command_prints_a_table_and_its_sentence() -> None:
    arguments = ["lab", "kv-cache", "-m", MODEL, "--num-requests", "4", "--max-model-len", "64"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("No KV cache against a KV cache")
    assert "4 tokens took 35 computed rows with the cache" in result.output


def test_a_plot_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["lab", "batching", "-m", "no-such-model", "--plot", str(tmp_path / "plot.txt")])
    assert result.exit_code == 1
    assert "no-such-model" not in result.output


def test_the_longest_member_sets_the_length_of_its_batch() -> None:
    requests = [LabRequest([1], length) for length in (3, 9, *[1] * 6, 5, 2)]
    padded = batching.pad_batches(requests, seats=8)
    assert [request.output_len + request.num_padding for request in padded] == [9] * 8 + [5, 5]


def test_seats_given_by_the_user_are_those_of_the_experiment() -> None:
    figures = run_experiment("batching", 6, max_num_seqs=2).policies
    assert {max(entry["computed_requests"]) for entry in figures.values()} == {2}
    assert figures["static"]["wasted_share"] > 0
    assert figures["no-refill"]["wasted_share"] == 0


@pytest.mark.parametrize("wrong", [{"num_requests": 0}, {"rounds": 0}], ids=str)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LabSettings(MODEL, **wrong)  # type: ignore[arg-type]
