"""Tokenizer: directories, bytes of tokens, and the names a transformers user expects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from model_files import byte_level_metadata, make_gguf, sentencepiece_metadata
from tokenizers import AddedToken
from tokenizers.pre_tokenizers import ByteLevel

from octavo.errors import ModelLoadError, RequestError
from octavo.formats.gguf import open_gguf
from octavo.tokenizer.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("own_cache")

METADATA = {"byte-level": byte_level_metadata(), "sentencepiece": sentencepiece_metadata()}


@pytest.fixture(params=METADATA, ids=str)
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    return make_tokenizer(tmp_path, request.param)


def make_tokenizer(tmp_path: Path, kind: str) -> Tokenizer:
    path = tmp_path / "vocab.gguf"
    path.write_bytes(make_gguf(METADATA[kind]))
    return Tokenizer.from_gguf(open_gguf(path))


def make_directory(tmp_path: Path, **files: object) -> Path:
    """Save a byte-level tokenizer as a Hugging Face directory; `files` are JSON files by stem, None leaves one out."""
    directory = tmp_path / "hf"
    directory.mkdir()
    make_tokenizer(tmp_path, "byte-level").backend.save(str(directory / "tokenizer.json"))
    defaults = {"tokenizer_config": {"bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>"}}}
    for stem, content in {**defaults, **files}.items():
        if content is not None:
            (directory / f"{stem}.json").write_text(json.dumps(content))
    return directory


@pytest.mark.parametrize(
    ("kind", "text", "joined"),
    [
        pytest.param("byte-level", "hello\nhello<|im_end|>", "hello\nhello<|im_end|>", id="byte-level"),
        pytest.param("sentencepiece", "hello wörld</s>", " hello wörld</s>", id="sentencepiece"),
    ],
)
def test_bytes_of_tokens_join_to_the_text(tmp_path: Path, kind: str, text: str, joined: str) -> None:
    tokenizer = make_tokenizer(tmp_path, kind)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(map(tokenizer.id_to_bytes, ids)).decode() == joined


def test_the_byte_level_alphabet_is_that_of_the_library(tmp_path: Path) -> None:
    alphabet = sorted(ByteLevel.alphabet())
    path = tmp_path / "vocab.gguf"
    path.write_bytes(make_gguf(byte_level_metadata(tokens=alphabet, token_type=None, merges=[])))
    tokenizer = Tokenizer.from_gguf(open_gguf(path))
    for char in [*map(chr, range(1, 0x250)), "€", "🦙"]:
        assert b"".join(map(tokenizer.id_to_bytes, tokenizer.encode(char))) == char.encode()


def test_a_character_split_over_tokens_gives_its_bytes_one_by_one(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, "sentencepiece")
    ids = tokenizer.encode("é", add_special_tokens=False)
    assert [tokenizer.id_to_bytes(i) for i in ids] == [b" ", b"\xc3", b"\xa9"]


def test_the_bytes_of_every_token_are_what_decode_makes_of_it(tokenizer: Tokenizer) -> None:
    added = [AddedToken(text, special=False, normalized=False) for text in ("▁▁", "a▁b", "  ", "<tag>▁", "é▁")]
    tokenizer.backend.add_tokens(added)
    first = tokenizer.encode("h", add_special_tokens=False)
    start = b"".join(map(tokenizer.id_to_bytes, first))
    for token_id in range(tokenizer.backend.get_vocab_size()):
        joined = (start + tokenizer.id_to_bytes(token_id)).decode("utf-8", "replace")
        assert joined.lstrip() == tokenizer.decode([*first, token_id]).lstrip()


def test_ids_beyond_the_vocabulary_have_no_text(tokenizer: Tokenizer) -> None:
    beyond = tokenizer.vocab_size + 5
    assert tokenizer.id_to_bytes(beyond) == b""
    assert tokenizer.decode([beyond]) == ""
    assert tokenizer.convert_ids_to_tokens(beyond) is None


def test_special_tokens_are_left_out_on_request(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos_token is not None
    ids = tokenizer.encode(f"hello{tokenizer.eos_token}", add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hello"
    assert tokenizer.decode(ids) == f"hello{tokenizer.eos_token}"


def test_names_of_special_tokens_fit_their_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.bos_token == tokenizer.convert_ids_to_tokens(tokenizer.bos_token_id or 0)
    assert tokenizer.convert_tokens_to_ids(tokenizer.all_special_tokens) == tokenizer.all_special_ids
    assert set(tokenizer.all_special_ids) == tokenizer.special_token_ids
    assert len(tokenizer) == tokenizer.vocab_size == len(tokenizer.get_vocab())


def test_an_unknown_token_converts_to_the_unknown_id(tmp_path: Path) -> None:
    assert make_tokenizer(tmp_path, "sentencepiece").convert_tokens_to_ids("martian") == 0


def test_a_lone_surrogate_is_a_request_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="Unicode"):
        tokenizer.encode("a\ud800b")


def test_a_batch_equals_its_texts_one_by_one(tokenizer: Tokenizer) -> None:
    texts = ["hello", "", "hell", "hello hello"]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.batch_decode(tokenizer.encode_batch(texts, False)) == [
        tokenizer.decode(tokenizer.encode(text, False)) for text in texts
    ]


def test_a_directory_gives_the_same_ids_as_the_file_it_came_from(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_path(make_directory(tmp_path))
    assert tokenizer.encode("hello") == make_tokenizer(tmp_path, "byte-level").encode("hello")
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|endoftext|>", "<|im_end|>")


def test_stop_ids_are_the_union_of_all_files_that_name_some(tmp_path: Path) -> None:
    directory = make_directory(
        tmp_path,
        config={"eos_token_id": 7, "text_config": {"eos_token_id": 9}},
        generation_config={"eos_token_id": [1, 8]},
    )
    assert Tokenizer.from_directory(directory).eos_token_ids == (1, 8, 7, 9)


def test_special_tokens_map_fills_in_what_the_config_lacks(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, tokenizer_config=None, special_tokens_map={"eos_token": "<|im_end|>"})
    assert Tokenizer.from_directory(directory).eos_token_id == 1


def test_a_template_file_wins_over_the_config(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, tokenizer_config={"chat_template": "old"})
    assert Tokenizer.from_directory(directory).chat_template == "old"
    (directory / "chat_template.jinja").write_text("new")
    assert Tokenizer.from_directory(directory).chat_template == "new"


def test_truncation_and_padding_in_the_file_are_switched_off(tmp_path: Path) -> None:
    directory = make_directory(tmp_path)
    document = json.loads((directory / "tokenizer.json").read_text())
    document["truncation"] = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    (directory / "tokenizer.json").write_text(json.dumps(document))
    assert len(Tokenizer.from_directory(directory).encode("hello")) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "missing", id="absent"),
        pytest.param(b"{", "cannot be built", id="not-json"),
        pytest.param(b"[" * 100_000, "cannot be built", id="deeply-nested"),
        pytest.param(b'{"model":{"type":"BPE","vocab":{"a":0},"merges":[["a","b"]]}}', "cannot be built", id="merges"),
    ],
)
def test_a_wrong_tokenizer_file_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelLoadError, match=str(tmp_path)) as error:
        Tokenizer.from_directory(tmp_path)
    assert message in str(error.value)


def test_an_oversized_tokenizer_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ModelLoadError, match="at most"):
        Tokenizer.from_directory(tmp_path)


def test_a_sentencepiece_model_file_alone_gets_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(ModelLoadError, match="save_pretrained"):
        Tokenizer.from_directory(tmp_path)


def test_a_model_without_template_says_so(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="no default chat template"):
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hello"}], chat_template="{{ messages[0].content }}"
    )
    assert ids == tokenizer.encode("hello", add_special_tokens=False)


@pytest.mark.parametrize("template", [5, ["default"], b"x"], ids=repr)
def test_a_chat_template_that_is_not_text_is_refused(tmp_path: Path, template: Any) -> None:
    tokenizer = make_tokenizer(tmp_path, "byte-level")
    with pytest.raises(RequestError, match="chat_template must be text"):
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], chat_template=template)


def test_tools_that_the_template_does_not_show_are_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = make_tokenizer(tmp_path, "byte-level")
    conversation, tools = [{"role": "user", "content": "hi"}], [{"type": "function", "function": {"name": "f"}}]
    shown = tokenizer.apply_chat_template(
        conversation, tools=tools, tokenize=False, chat_template="{{ tools[0].function.name }}"
    )
    assert (shown, caplog.messages) == ("f", [])
    tokenizer.apply_chat_template(conversation, tools=tools, tokenize=False, chat_template="{{ messages[0].content }}")
    assert [message.split(";")[0] for message in caplog.messages] == ["The chat template shows no tools to the model"]


def test_a_tokenizer_is_shown_by_its_name_and_size(tokenizer: Tokenizer) -> None:
    assert repr(tokenizer) == f"Tokenizer({tokenizer.name_or_path!r}, vocab_size={len(tokenizer)})"
