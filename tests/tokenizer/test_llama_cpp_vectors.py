"""The tokenizer vectors that ship with llama.cpp: the same ids, but where a model's own tokenizer composes text first.

Reduced vocabularies are in tests/data (tools/reduce_vocabularies.py made them). The whole ones take 60 MB: the
`models` folder of a llama.cpp checkout, or of the llama-cpp-python source package, is named by an environment variable.
"""

from __future__ import annotations

import json
import os
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from model_files import make_gguf

from octavo.errors import ModelLoadError
from octavo.formats.gguf import open_gguf
from octavo.tokenizer.pre_tokenizers import NORMALIZES_NFC
from octavo.tokenizer.tokenizer import Tokenizer

WHOLE = os.environ.get("OCTAVO_LLAMA_CPP_MODELS")
REDUCED = sorted((Path(__file__).parents[1] / "data" / "tokenizer_vectors").glob("*.json"))
SEPARATOR = "\n__ggml_vocab_test__\n"
ENCODERS = ("bert-bge", "nomic-bert-moe")

Cases = list[tuple[str, list[int]]]


def check_cases(tokenizer: Tokenizer, pre: object, cases: Cases) -> None:
    for text, expected in cases:
        ids = tokenizer.encode(text, add_special_tokens=False)
        composed = unicodedata.normalize("NFC", text)
        if pre in NORMALIZES_NFC and composed != text:
            assert ids == tokenizer.encode(composed, add_special_tokens=False)
        else:
            assert ids == expected, text


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("path", REDUCED, ids=lambda path: path.stem)
def test_reduced_vocabularies_give_the_ids_of_the_vectors(tmp_path: Path, path: Path) -> None:
    data = json.loads(path.read_text())
    vocabulary = data["vocabulary"]
    vocabulary["token_type"] = np.array(vocabulary["token_type"], np.int32)
    if "scores" in vocabulary:
        vocabulary["scores"] = np.array(vocabulary["scores"], np.float32)
    file = tmp_path / "vocabulary.gguf"
    file.write_bytes(make_gguf({f"tokenizer.ggml.{key}": value for key, value in vocabulary.items()}))
    assert len(data["cases"]) >= 46
    check_cases(Tokenizer.from_gguf(open_gguf(file)), vocabulary.get("pre"), data["cases"])


def whole_vocabularies() -> list[Path]:
    return sorted(Path(WHOLE).glob("ggml-vocab-*.gguf")) if WHOLE else []


@pytest.mark.usefixtures("own_cache")
@pytest.mark.skipif(not WHOLE, reason="OCTAVO_LLAMA_CPP_MODELS does not name llama.cpp's models folder")
@pytest.mark.parametrize("path", whole_vocabularies(), ids=lambda path: path.stem)
def test_whole_vocabularies_give_the_ids_of_the_vectors(path: Path) -> None:
    file = open_gguf(path)
    if path.stem.removeprefix("ggml-vocab-") in ENCODERS:
        with pytest.raises(ModelLoadError, match="which encoders"):
            Tokenizer.from_gguf(file)
        return
    tokenizer = Tokenizer.from_gguf(file)
    texts_path = Path(f"{path}.inp")
    if not texts_path.exists():
        assert tokenizer.decode(tokenizer.encode("Hello world", add_special_tokens=False)).strip() == "Hello world"
        return
    texts = texts_path.read_bytes().decode().split(SEPARATOR)
    lines = Path(f"{path}.out").read_text().split("\n")
    assert len(lines) in (len(texts), len(texts) + 1)  # the last line may be ended
    cases = [(text, [int(number) for number in line.split()]) for text, line in zip(texts, lines, strict=False)]
    check_cases(tokenizer, file.metadata.get("tokenizer.ggml.pre"), cases)
