from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from octavo.bench.figures import Percentiles
from octavo.bench.report import Report, format_columns, format_number, make_recipe, model_sha256
from octavo.config import EngineConfig


def test_the_document_is_one_line_with_figures_at_its_top() -> None:
    text = Report("latency", {"threads": 2}, {"total_s": 1.5, "ttft_ms": Percentiles(1.0, 2.0, 3.0)}, "").to_json()
    assert "\n" not in text
    assert json.loads(text) == {
        "benchmark": "latency",
        "recipe": {"threads": 2},
        "total_s": 1.5,
        "ttft_ms": {"p50": 1.0, "p90": 2.0, "p99": 3.0},
    }


def test_a_recipe_holds_the_model_and_the_options_that_differ(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"weights")
    config = EngineConfig(str(model), block_size=32, seed=0)
    recipe = make_recipe(config, num_threads=2, isa="avx2", workload={"input_len": 3})
    assert recipe["sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert recipe["options"] == {"block_size": 32}
    assert (recipe["threads"], recipe["isa"], recipe["workload"]) == (2, "avx2", {"input_len": 3})
    assert {"octavo", "python", "numpy", "system"} <= recipe["versions"].keys()
    json.dumps(recipe)


def test_the_hash_of_a_directory_changes_with_any_weight_file(tmp_path: Path) -> None:
    for name in ("config.json", "a.safetensors", "b.safetensors", "README.md"):
        (tmp_path / name).write_text(name)
    before = model_sha256(tmp_path)
    (tmp_path / "README.md").write_text("else")
    assert model_sha256(tmp_path) == before
    (tmp_path / "b.safetensors").write_text("else")
    assert model_sha256(tmp_path) != before


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (1234567, "1,234,567"),
        (1234.5, "1,234"),
        (12.345, "12.3"),
        (0.01234, "0.0123"),
        ("text", "text"),
        (Percentiles(1.0, 20.0, 300.0), "p50 1, p90 20.0, p99 300"),
        ({"p10": 0.5}, "p10 0.5"),
    ],
    ids=["none", "int", "large", "middle", "small", "text", "percentiles", "dict"],
)
def test_numbers_are_written_for_people(value: object, text: str) -> None:
    assert format_number(value) == text


def test_columns_line_up() -> None:
    assert format_columns(["op", "us"], [["norm", 1.5], ["a", 1000]]).splitlines() == [
        "op       us",
        "norm    1.5",
        "a     1,000",
    ]
