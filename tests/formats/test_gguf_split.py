"""A model split into several GGUF files is one model, whichever of them is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from model_files import Tensor, make_gguf

from octavo.errors import ModelLoadError
from octavo.formats.gguf import open_gguf
from octavo.formats.gguf_quants import dequantize
from octavo.formats.gguf_split import models_among, part_names

COUNT = 3


def make_tensor(value: float) -> Tensor:
    return 0, [4, 2], np.full(8, value, np.float32).tobytes()


def make_parts(
    directory: Path,
    changes: Mapping[int, Mapping[str, object]] | None = None,
    tensors: Mapping[int, Mapping[str, Tensor]] | None = None,
) -> list[Path]:
    """Write three parts with a tensor each; the first has the metadata. `changes`: keys per part that differ."""
    paths = []
    for number in range(COUNT):
        metadata: dict[str, object] = {"general.name": "whole"} if number == 0 else {}
        metadata |= {"split.no": number, "split.count": COUNT, "split.tensors.count": COUNT}
        metadata |= (changes or {}).get(number, {})
        path = directory / f"m-{number + 1:05}-of-{COUNT:05}.gguf"
        path.write_bytes(make_gguf(metadata, (tensors or {}).get(number, {f"t{number}": make_tensor(number)})))
        paths.append(path)
    return paths


@pytest.mark.parametrize("number", range(COUNT))
def test_any_part_opens_the_whole_model(tmp_path: Path, number: int) -> None:
    paths = make_parts(tmp_path)
    file = open_gguf(paths[number])
    assert file.path == paths[0]
    assert file.metadata["general.name"] == "whole"
    assert {name: dequantize(tensor)[0, 0] for name, tensor in file.tensors.items()} == {"t0": 0, "t1": 1, "t2": 2}


def test_a_first_part_without_tensors_is_fine(tmp_path: Path) -> None:
    paths = make_parts(tmp_path, {0: {"split.tensors.count": 2}}, {0: {}})
    assert list(open_gguf(paths[0]).tensors) == ["t1", "t2"]


@pytest.mark.parametrize("number", range(COUNT))
def test_a_missing_part_is_named(tmp_path: Path, number: int) -> None:
    paths = make_parts(tmp_path)
    paths[number].unlink()
    with pytest.raises(ModelLoadError, match=rf"m-0000{number + 1}-of-00003\.gguf: missing: .* 3 files, 1 of which"):
        open_gguf(paths[(number + 1) % COUNT])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({1: {"split.count": 4}}, r"m-00002-.*: split\.count: 4, but its name makes it 3", id="count"),
        pytest.param({2: {"split.no": 1}}, r"m-00003-.*: split\.no: 1, but its name makes it 2", id="number"),
        pytest.param({1: {"split.no": "1"}}, r"split\.no: '1'", id="number-of-another-type"),
        pytest.param({0: {"split.tensors.count": 4}}, "4, but the 3 files hold 3 tensors", id="tensors"),
        pytest.param(
            {1: {"split.no": np.arange(2, dtype=np.int32)}}, r"split\.no: array", id="number-that-is-an-array"
        ),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(
    tmp_path: Path, changes: dict[int, dict[str, object]], message: str
) -> None:
    paths = make_parts(tmp_path, changes)
    with pytest.raises(ModelLoadError, match=message):
        open_gguf(paths[0])


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    paths = make_parts(tmp_path, tensors={2: {"t0": make_tensor(9)}})
    with pytest.raises(ModelLoadError, match=r"m-00003-of-00003\.gguf: tensor 't0': is in a file before this one"):
        open_gguf(paths[0])


def test_a_part_under_another_name_is_refused(tmp_path: Path) -> None:
    path = make_parts(tmp_path)[0].rename(tmp_path / "model.gguf")
    with pytest.raises(ModelLoadError, match=r"must be called NAME-00001-of-00003\.gguf"):
        open_gguf(path)


@pytest.mark.parametrize(
    "name", ["m.gguf", "m-00000-of-00002.gguf", "m-00003-of-00002.gguf", "m-1-of-2.gguf", "m-00001-of-00002.bin"]
)
def test_other_names_are_no_parts(name: str) -> None:
    assert part_names(name) is None


def test_parts_count_as_one_model() -> None:
    assert models_among(["b-00002-of-00002.gguf", "a.gguf", "b-00001-of-00002.gguf"]) == [
        "b-00001-of-00002.gguf",
        "a.gguf",
    ]
