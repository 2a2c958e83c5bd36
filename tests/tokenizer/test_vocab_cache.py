"""The cache of rebuilt tokenizers: used when whole, rebuilt when not, never a reason to fail."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from model_files import byte_level_metadata, make_gguf

from octavo.formats.gguf import GgufFile, open_gguf
from octavo.tokenizer import gguf_vocab
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.tokenizer.vocab_cache import cache_path


@pytest.fixture
def file(tmp_path: Path) -> GgufFile:
    path = tmp_path / "vocab.gguf"
    path.write_bytes(make_gguf(byte_level_metadata()))
    return open_gguf(path)


def refuse_to_build(*_: object) -> bytes:
    raise AssertionError("the tokenizer was built again")


def test_the_second_load_does_not_build(own_cache: Path, file: GgufFile, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Tokenizer.from_gguf(file)
    assert cache_path(file).is_relative_to(own_cache)
    monkeypatch.setattr(gguf_vocab, "build_tokenizer_json", refuse_to_build)
    second = Tokenizer.from_gguf(file)
    assert second.encode("hello") == first.encode("hello")
    assert second.get_vocab() == first.get_vocab()
    assert second.eos_token_ids == first.eos_token_ids


def flip_a_byte(data: bytes) -> bytes:
    return data[:500] + bytes([data[500] ^ 1]) + data[501:]


def valid_checksum_of_nonsense(_: bytes) -> bytes:
    return hashlib.sha256(b"{}").hexdigest().encode() + b"\n{}"


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-1], flip_a_byte, lambda _: b"", valid_checksum_of_nonsense],
    ids=["truncated", "byte-flipped", "empty", "not-a-tokenizer"],
)
def test_a_damaged_entry_is_rebuilt(file: GgufFile, damage: object) -> None:
    expected = Tokenizer.from_gguf(file).encode("hello")
    path = cache_path(file)
    whole = path.read_bytes()
    assert callable(damage)
    path.write_bytes(damage(whole))
    assert Tokenizer.from_gguf(file).encode("hello") == expected
    assert path.read_bytes() == whole


@pytest.mark.usefixtures("own_cache")
def test_other_metadata_has_another_entry(tmp_path: Path, file: GgufFile) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(make_gguf(byte_level_metadata(add_bos_token=True)))
    assert cache_path(open_gguf(other)) != cache_path(file)


def test_a_cache_that_cannot_be_written_is_no_error(
    tmp_path: Path, file: GgufFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a-file").touch()
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "a-file" / "below"))
    assert Tokenizer.from_gguf(file).encode("hello")


def test_no_temporary_files_are_left(own_cache: Path, file: GgufFile) -> None:
    Tokenizer.from_gguf(file)
    assert [path.name for path in (own_cache / "tokenizers").iterdir()] == [cache_path(file).name]
