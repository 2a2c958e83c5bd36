"""What a model's files say about its embeddings, and the arithmetic."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import make_gguf

from octavo.errors import ModelLoadError
from octavo.formats.gguf import open_gguf
from octavo.frontend.embedding import EmbeddingConfig, cosine, embedding_config, make_embedding
from octavo.pooling_params import PoolingParams

MODULES = ["Transformer", "Pooling", "Normalize"]


def write_modules(directory: Path, kinds: list[str], pooling: Any, name: str = "1_Pooling") -> Path:
    """Write the files of a sentence-transformers checkpoint that are about its modules."""
    modules = [{"idx": i, "path": name, "type": f"sentence_transformers.models.{kind}"} for i, kind in enumerate(kinds)]
    (directory / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (directory / "1_Pooling").mkdir()
        (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return directory


def modes(*on: str) -> dict[str, Any]:
    names = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    return {"word_embedding_dimension": 64, "include_prompt": True, **{f"pooling_mode_{n}": n in on for n in names}}


@pytest.mark.parametrize(
    ("kinds", "pooling", "expected"),
    [
        (MODULES, modes("lasttoken"), EmbeddingConfig("last")),
        (MODULES, modes("mean_tokens"), EmbeddingConfig("mean")),
        (MODULES[:2], modes("mean_tokens"), EmbeddingConfig("mean", normalizes=False)),
        (MODULES, {"pooling_mode": "lasttoken"}, EmbeddingConfig("last")),
        (MODULES[:1], None, EmbeddingConfig("last", normalizes=False)),
    ],
    ids=["last", "mean", "no normalize", "named", "no pooling"],
)
def test_the_files_of_sentence_transformers_are_read(
    tmp_path: Path, kinds: list[str], pooling: Any, expected: EmbeddingConfig
) -> None:
    assert embedding_config(None, write_modules(tmp_path, kinds, pooling)) == expected


@pytest.mark.parametrize(
    ("kinds", "pooling", "problem"),
    [
        (MODULES, modes("cls_token"), "pooling by cls"),
        (MODULES, modes("cls_token", "mean_tokens"), "pooling by cls and mean"),
        (MODULES, modes(), "nothing known"),
        (MODULES, None, "1_Pooling/config.json"),
        ([*MODULES[:2], "Dense", "Normalize"], modes("mean_tokens"), "go through Dense"),
    ],
    ids=["cls", "two", "none", "missing", "dense"],
)
def test_what_cannot_be_had_is_told_and_the_option_goes_first(
    tmp_path: Path, kinds: list[str], pooling: Any, problem: str
) -> None:
    directory = write_modules(tmp_path, kinds, pooling)
    assert problem in (embedding_config(None, directory).problem or "")
    assert embedding_config("mean", directory) == EmbeddingConfig("mean")


def test_a_directory_without_modules_pools_the_last_token(tmp_path: Path) -> None:
    assert embedding_config(None, tmp_path) == EmbeddingConfig("last", normalizes=True)


@pytest.mark.parametrize("name", ["../secret", "/etc", "a/b"])
def test_a_path_out_of_the_directory_is_not_followed(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelLoadError, match="not the name of a directory"):
        embedding_config(None, write_modules(tmp_path, MODULES, modes("mean_tokens"), name))


def test_modules_that_are_no_list_are_refused(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="expected an array"):
        embedding_config(None, tmp_path)


@pytest.mark.parametrize(("kind", "expected"), [(None, "last"), (0, "last"), (1, "mean"), (3, "last")])
def test_the_metadata_of_a_gguf_file_is_read(tmp_path: Path, kind: int | None, expected: str) -> None:
    metadata: dict[str, object] = {"general.architecture": "qwen3"}
    if kind is not None:
        metadata["qwen3.pooling_type"] = kind
    (tmp_path / "model.gguf").write_bytes(make_gguf(metadata))
    assert embedding_config(None, open_gguf(tmp_path / "model.gguf")) == EmbeddingConfig(expected)  # type: ignore[arg-type]


def test_a_gguf_file_with_another_pooling_says_so(tmp_path: Path) -> None:
    metadata: dict[str, object] = {"general.architecture": "qwen3", "qwen3.pooling_type": 4}
    (tmp_path / "model.gguf").write_bytes(make_gguf(metadata))
    assert "pooling of type 4" in (embedding_config(None, open_gguf(tmp_path / "model.gguf")).problem or "")


def test_rows_are_averaged_cut_scaled_and_rounded_in_this_order() -> None:
    total = np.array([6.0, 8.0, 100.0])
    raw = PoolingParams(use_activation=False)
    assert make_embedding(total, 2, raw) == [3.0, 4.0, 50.0]
    assert make_embedding(total, 2, PoolingParams(use_activation=True, dimensions=2)) == [
        float(np.float32(0.6)),
        float(np.float32(0.8)),
    ]
    assert make_embedding(np.zeros(3), 1, PoolingParams(use_activation=True)) == [0.0, 0.0, 0.0]


def test_a_cosine_stays_in_its_range() -> None:
    a = [0.1, 0.2, 0.7]
    assert cosine(a, a) == 1.0
    assert cosine(a, [-value for value in a]) == -1.0
    assert cosine([1.0, 0.0], [1.0, 1.0]) == pytest.approx(math.sqrt(0.5))
    assert cosine([0.0, 0.0], [1.0, 1.0]) == 0.0
