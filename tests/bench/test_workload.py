from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
from face_fakes import EOS, ByteTokenizer

from octavo.bench.workload import WorkItem, Workload, ordinary_token_ids
from octavo.errors import ConfigError

MAX_MODEL_LEN = 2048


def make_items(**options: Any) -> list[WorkItem]:
    return Workload(**options).items(ByteTokenizer(), MAX_MODEL_LEN)


def write_dataset(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(lines))
    return str(path)


def test_the_same_seed_makes_the_same_requests() -> None:
    assert make_items(seed=3, length_sigma=0.5) == make_items(seed=3, length_sigma=0.5)
    assert make_items(seed=3) != make_items(seed=4)


def test_random_requests_have_the_lengths_that_were_asked_for() -> None:
    items = make_items(input_len=7, output_len=9, num_prompts=5)
    assert [(len(item.prompt), item.output_len) for item in items] == [(7, 9)] * 5


def test_no_two_random_prompts_begin_alike() -> None:
    items = make_items(input_len=32, num_prompts=50)
    assert len({tuple(item.prompt[:16]) for item in items}) == 50


def test_special_tokens_are_never_drawn() -> None:
    assert EOS not in ordinary_token_ids(ByteTokenizer())
    assert ordinary_token_ids(ByteTokenizer()) == list(range(256))


def test_log_normal_lengths_have_the_given_medians() -> None:
    items = make_items(input_len=200, output_len=100, num_prompts=500, length_sigma=0.7, seed=1)
    assert statistics.median(len(item.prompt) for item in items) == pytest.approx(200, rel=0.1)
    assert statistics.median(item.output_len for item in items) == pytest.approx(100, rel=0.1)
    assert max(len(item.prompt) for item in items) > 600


def test_log_normal_lengths_fit_the_model() -> None:
    items = Workload(input_len=60, output_len=60, num_prompts=200, length_sigma=2.0).items(ByteTokenizer(), 64)
    assert max(len(item.prompt) + item.output_len for item in items) <= 64
    assert min(item.output_len for item in items) >= 1


def test_a_custom_dataset_gives_its_prompts_in_order(tmp_path: Path) -> None:
    path = write_dataset(tmp_path, '{"prompt": "a", "output_tokens": 3}', "", '{"prompt": "b"}', '{"prompt": "c"}')
    items = make_items(dataset_name="custom", dataset_path=path, output_len=8)
    assert items == [WorkItem("a", 3), WorkItem("b", 8), WorkItem("c", 8)]
    assert make_items(dataset_name="custom", dataset_path=path, num_prompts=1) == [WorkItem("a", 3)]


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\u0085"], ids=["line", "paragraph", "next line"])
def test_signs_that_end_lines_elsewhere_end_none_of_a_dataset(tmp_path: Path, mark: str) -> None:
    path = write_dataset(tmp_path, f'{{"prompt": "a{mark}b"}}', '{"prompt": "c"}')
    items = make_items(dataset_name="custom", dataset_path=path, output_len=8)
    assert items == [WorkItem(f"a{mark}b", 8), WorkItem("c", 8)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 1: not JSON"),
        ("[" * 100_000, "line 1: not JSON"),
        ("[]", 'line 1: expected an object with a text "prompt"'),
        ('{"prompt": 5}', 'line 1: expected an object with a text "prompt"'),
        ('{"prompt": "a", "output_tokens": 0}', r"output_tokens must be an integer in \[1, 16777216\], got 0"),
        ('{"prompt": "a", "output_tokens": "9"}', "output_tokens must be an integer"),
    ],
    ids=["json", "deep", "list", "number", "zero", "text"],
)
def test_a_bad_line_of_a_dataset_is_named(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make_items(dataset_name="custom", dataset_path=write_dataset(tmp_path, line))


def test_a_dataset_with_too_few_prompts_is_refused_with_the_numbers(tmp_path: Path) -> None:
    path = write_dataset(tmp_path, '{"prompt": "a"}')
    with pytest.raises(ConfigError, match="holds 1 prompt, num_prompts asks for 2"):
        make_items(dataset_name="custom", dataset_path=path, num_prompts=2)


def test_a_dataset_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        make_items(dataset_name="custom", dataset_path=str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dataset_name": "sharegpt"}, "dataset_name must be one of random, custom, got 'sharegpt'"),
        ({"input_len": 0}, r"input_len must be in \[1, 16777216\], got 0"),
        ({"output_len": -1}, "output_len must be in"),
        ({"num_prompts": 0}, "num_prompts must be in"),
        ({"length_sigma": -0.1}, r"length_sigma must be in \[0, 3\], got -0.1"),
        ({"length_sigma": float("nan")}, "length_sigma must be in"),
        ({"dataset_name": "custom"}, "give both, or neither"),
        ({"dataset_path": "x"}, "give both, or neither"),
        ({"dataset_name": "custom", "dataset_path": "x", "length_sigma": 1.0}, "has its own"),
    ],
    ids=["name", "input", "output", "count", "sigma", "nan", "no-path", "path", "custom-sigma"],
)
def test_values_that_mean_nothing_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Workload(**options)
