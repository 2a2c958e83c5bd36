#!/usr/bin/env python3
"""Cuts vocabularies down to what llama.cpp's tokenizer vectors need, for tests/data/tokenizer_vectors.

    python tools/reduce_vocabularies.py LLAMA_CPP/models tests/data/tokenizer_vectors

Text is joined from its characters up, so a token that is no part of a text can have no part in how it is split: without
it the result is the same. What is kept has new ids, and so have the expected ones.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tokenizers

from octavo.formats.gguf import GgufFile, open_gguf

VOCABULARIES = ("gpt-2", "falcon", "mpt", "qwen2", "qwen35", "phi-3", "gemma-4")
"""Those that permissive licences cover: MIT (gpt-2, phi-3) and Apache 2.0."""
SEPARATOR = "\n__ggml_vocab_test__\n"
_NORMAL, _UNUSED, _BYTE = 1, 5, 6
_SCALARS = ("model", "pre", "add_space_prefix", "add_bos_token")
_IDS = ("bos_token_id", "eos_token_id", "unknown_token_id")


def read_cases(vocabulary: Path) -> list[tuple[str, list[int]]]:
    """Return the texts beside a vocabulary, and the ids of their tokens."""
    texts = Path(f"{vocabulary}.inp").read_bytes().decode().split(SEPARATOR)
    lines = Path(f"{vocabulary}.out").read_text().split("\n")
    return [(text, [int(number) for number in line.split()]) for text, line in zip(texts, lines, strict=False)]


def reduce_vocabulary(file: GgufFile, cases: list[tuple[str, list[int]]]) -> dict[str, Any]:
    """Return the scalars, tokens, types, and merges or scores that the cases need; and the cases, renumbered."""
    metadata: dict[str, Any] = {
        key.removeprefix("tokenizer.ggml."): value for key, value in file.metadata.items() if "tokenizer.ggml." in key
    }
    is_byte_level = metadata["model"] == "gpt2"
    texts = "\n".join(_as_pieces(text, is_byte_level) for text, _ in cases)
    tokens, types = metadata["tokens"].tolist(), metadata["token_type"].tolist()
    expected = {token_id for _, ids in cases for token_id in ids}
    kept = [
        i
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if i in expected or kind == _BYTE or (kind in (_NORMAL, _UNUSED) and token in texts)
    ]
    kept = sorted({*kept, *(metadata[name] for name in _IDS if name in metadata)})
    new_id = {old: new for new, old in enumerate(kept)}
    result = {name: metadata[name] for name in _SCALARS if name in metadata}
    result |= {name: new_id[metadata[name]] for name in _IDS if name in metadata}
    result |= {"tokens": [tokens[i] for i in kept], "token_type": [types[i] for i in kept]}
    if "merges" in metadata:
        known = set(result["tokens"])
        result["merges"] = [merge for merge in metadata["merges"].tolist() if _is_known(merge, known)]
    else:
        result["scores"] = [float(metadata["scores"][i]) for i in kept]
    return {"vocabulary": result, "cases": [[text, [new_id[i] for i in ids]] for text, ids in cases]}


def _as_pieces(text: str, is_byte_level: bool) -> str:
    """Return a text in the characters that tokens are made of."""
    if is_byte_level:
        pieces = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
        return "".join(piece for piece, _ in pieces)
    return "▁" + text.replace(" ", "▁")


def _is_known(merge: str, known: set[str]) -> bool:
    border = merge.index(" ", 1)
    left, right = merge[:border], merge[border + 1 :]
    return left in known and right in known and left + right in known


def main() -> None:
    """Write one JSON file for each vocabulary."""
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    for name in VOCABULARIES:
        path = source / f"ggml-vocab-{name}.gguf"
        reduced = reduce_vocabulary(open_gguf(path), read_cases(path))
        text = json.dumps(reduced, ensure_ascii=True, separators=(",", ":"))
        (target / f"{name}.json").write_text(text + "\n")
        print(f"{name}: {len(reduced['vocabulary']['tokens'])} tokens, {len(text)} bytes")


if __name__ == "__main__":
    main()
