"""Tokenizers rebuilt from GGUF metadata: the reference's ids on real models, llama.cpp's rules elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import BYTE_LEVEL_TOKENS, byte_level_metadata, make_gguf, sentencepiece_metadata

from octavo.errors import ModelLoadError
from octavo.formats.gguf import open_gguf
from octavo.tokenizer.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("own_cache")


def make_tokenizer(tmp_path: Path, metadata: dict[str, object]) -> Tokenizer:
    path = tmp_path / "vocab.gguf"
    path.write_bytes(make_gguf(metadata))
    return Tokenizer.from_gguf(open_gguf(path))


def with_tokens(*extra: str, types: int = 3, **changes: object) -> dict[str, object]:
    """Return byte-level metadata with more tokens of a type."""
    metadata = byte_level_metadata()
    old = metadata["tokenizer.ggml.token_type"]
    assert isinstance(old, np.ndarray)
    all_types = np.concatenate([old, np.full(len(extra), types, dtype=np.int32)])
    return byte_level_metadata(tokens=[*BYTE_LEVEL_TOKENS, *extra], token_type=all_types, **changes)


def load_uncached(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OCTAVO_CACHE", str(tmp_path_factory.mktemp("cache")))
        return Tokenizer.from_path(path)


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_uncached(smollm2_path, tmp_path_factory)


@pytest.fixture(scope="module")
def gemma(gemma_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_uncached(gemma_path, tmp_path_factory)


def check_against_reference(tokenizer: Tokenizer, results: list[dict[str, Any]]) -> None:
    for case in results:
        if case["messages"]:
            ids = tokenizer.apply_chat_template(case["messages"], add_generation_prompt=True)
        else:
            ids = tokenizer.encode(case["prompt"])
        assert ids == case["prompt_ids"]
        assert tokenizer.decode(case["output_ids"]) == case["output_text"]
        assert b"".join(map(tokenizer.id_to_bytes, case["output_ids"])).decode() == case["output_text"]


def test_smollm2_gives_the_ids_and_text_of_the_reference(smollm2: Tokenizer, reference_greedy: dict[str, Any]) -> None:
    check_against_reference(smollm2, reference_greedy["smollm2-135m-instruct-q4_1"]["results"])


def test_gemma_gives_the_ids_and_text_of_the_reference(gemma: Tokenizer, reference_greedy: dict[str, Any]) -> None:
    check_against_reference(gemma, reference_greedy["gemma-3-270m-q4_k_m"]["results"])


def test_gemma_adds_bos_and_stops_at_the_end_of_a_turn(gemma: Tokenizer) -> None:
    assert gemma.encode("hi")[0] == gemma.bos_token_id == 2
    assert gemma.encode("hi", add_special_tokens=False)[0] != 2
    assert gemma.eos_token_ids == tuple(gemma.convert_tokens_to_ids(["<eos>", "<end_of_turn>"]))


def test_smollm2_adds_no_bos_and_stops_at_both_its_ends(smollm2: Tokenizer) -> None:
    assert smollm2.encode("hi") == smollm2.encode("hi", add_special_tokens=False)
    assert smollm2.convert_ids_to_tokens(smollm2.eos_token_ids) == ["<|im_end|>", "<|endoftext|>"]


def test_byte_level_text_is_merged_in_rank_order(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, byte_level_metadata())
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("hello<|im_end|> h")) == [
        "hell",
        "o",
        "<|im_end|>",
        "Ġ",
        "h",
    ]


def test_an_id_in_the_metadata_can_ask_for_bos_and_eos(tmp_path: Path) -> None:
    metadata = byte_level_metadata(add_bos_token=True, add_eos_token=True, eos_token_id=1)
    tokenizer = make_tokenizer(tmp_path, metadata)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("h")) == ["<|endoftext|>", "h", "<|im_end|>"]


@pytest.mark.parametrize(("pre", "adds_bos"), [("llama-bpe", True), ("gpt-2", False)])
def test_bos_without_a_setting_hangs_on_the_family(tmp_path: Path, pre: str, adds_bos: bool) -> None:
    tokenizer = make_tokenizer(tmp_path, byte_level_metadata(pre=pre))
    assert (tokenizer.encode("h")[0] == 0) is adds_bos


def test_only_control_tokens_end_a_generation_by_their_text(tmp_path: Path) -> None:
    control = make_tokenizer(tmp_path, with_tokens("<|eot_id|>", types=3))
    assert len(BYTE_LEVEL_TOKENS) in control.eos_token_ids
    user_defined = make_tokenizer(tmp_path, with_tokens("</s>", types=4))
    assert len(BYTE_LEVEL_TOKENS) not in user_defined.eos_token_ids


def test_end_of_a_message_is_no_end_where_a_turn_has_several(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, with_tokens("<|end|>", "<|return|>", "<|call|>"))
    first = len(BYTE_LEVEL_TOKENS)
    assert {first + 1, first + 2} <= set(tokenizer.eos_token_ids)
    assert first not in tokenizer.eos_token_ids


def test_sentencepiece_joins_by_score_and_falls_back_to_bytes(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, sentencepiece_metadata())
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode("hello<tag>é", add_special_tokens=False))
    assert tokens == ["▁hello", "<tag>", "▁", "<0xC3>", "<0xA9>"]


def test_sentencepiece_adds_bos_and_a_space_unless_told_otherwise(tmp_path: Path) -> None:
    usual = make_tokenizer(tmp_path, sentencepiece_metadata())
    assert usual.convert_ids_to_tokens(usual.encode("hello")) == ["<s>", "▁hello"]
    told = make_tokenizer(tmp_path, sentencepiece_metadata(add_bos_token=False, add_space_prefix=False))
    assert told.convert_ids_to_tokens(told.encode("hello")) == ["h", "el", "lo"]


def test_chat_templates_are_found_by_name(tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    templates = {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "tools"}
    path.write_bytes(make_gguf({**byte_level_metadata(), **templates}))
    tokenizer = Tokenizer.from_gguf(open_gguf(path))
    assert tokenizer.chat_template == "plain"
    messages = [{"role": "user", "content": "x"}]
    assert tokenizer.apply_chat_template(messages, tools=[{"name": "f"}], tokenize=False) == "tools"


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        pytest.param(byte_level_metadata(model=None), "tokenizer.ggml.model", id="no-model"),
        pytest.param(
            byte_level_metadata(model="bert"),
            "'bert' (WordPiece, which encoders use) is not supported",
            id="other-model",
        ),
        pytest.param(byte_level_metadata(pre="martian"), "'martian' is unknown", id="unknown-pre"),
        pytest.param(byte_level_metadata(tokens=None), "tokenizer.ggml.tokens", id="no-tokens"),
        pytest.param(byte_level_metadata(tokens=[]), "tokenizer.ggml", id="empty-tokens"),
        pytest.param(byte_level_metadata(tokens=["a", "a"]), "'a' appears twice", id="token-twice"),
        pytest.param(byte_level_metadata(tokens=["a" * 2000, "b"]), "2000 characters", id="token-too-long"),
        pytest.param(byte_level_metadata(merges=None), "tokenizer.ggml.merges", id="no-merges"),
        pytest.param(byte_level_metadata(merges=["nospace"]), "cannot be built", id="merge-without-space"),
        pytest.param(byte_level_metadata(merges=["q zz"]), "cannot be built", id="merge-of-unknown-token"),
        pytest.param(
            byte_level_metadata(eos_token_id=10**6), "tokenizer.ggml.eos_token_id", id="eos-beyond-vocabulary"
        ),
        pytest.param(byte_level_metadata(eos_token_id="x"), "tokenizer.ggml.eos_token_id", id="eos-not-a-number"),
        pytest.param(
            byte_level_metadata(token_type=np.zeros(3, dtype=np.int32)), "tokenizer.ggml.token_type", id="types-too-few"
        ),
        pytest.param(
            sentencepiece_metadata(scores=np.zeros(276, dtype=np.uint8)), "tokenizer.ggml.scores", id="scores-u8"
        ),
        pytest.param(sentencepiece_metadata(scores=None), "tokenizer.ggml.scores", id="no-scores"),
        pytest.param(
            sentencepiece_metadata(scores=np.full(277, np.nan, dtype=np.float32)), "not finite", id="scores-nan"
        ),
    ],
)
def test_wrong_metadata_is_named(tmp_path: Path, metadata: dict[str, object], field: str) -> None:
    with pytest.raises(ModelLoadError, match=r"vocab\.gguf") as error:
        make_tokenizer(tmp_path, metadata)
    assert field in str(error.value)
