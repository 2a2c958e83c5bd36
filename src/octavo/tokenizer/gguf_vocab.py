"""Rebuilds the tokenizer a GGUF file describes in its metadata, as the JSON document of the `tokenizers` library.

Three kinds: `gpt2`, byte-level BPE with merges and a named split expression; `llama`, SentencePiece tokens with scores;
`gemma4`, the same with merges instead of scores.
Where the file is silent, llama.cpp's rules hold: they are what the file was made for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.errors import ModelLoadError
from octavo.formats.gguf import GgufFile, GgufStrings
from octavo.tokenizer.pre_tokenizers import ADDS_BOS, IGNORES_MERGES, NORMALIZES_NFC, SPLIT_PATTERNS
from octavo.tokenizer.spm_merges import spm_merges

Json = dict[str, object]

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_SPACE_MARK = "▁"
_KINDS = ("gpt2", "llama", "gemma4")
_OTHER_KINDS = {
    "bert": "WordPiece, which encoders use",
    "t5": "Unigram, which encoders and translators use",
    "rwkv": "the trie of RWKV",
    "plamo2": "the tables of PLaMo 2",
}
MAX_TOKEN_CHARS = 1024
MAX_JOINED_TOKEN_CHARS = 256
"""For SentencePiece: finding the merges takes the square of the longest token; real ones stay below 64."""
MAX_VOCAB_SIZE = 1 << 20

END_OF_GENERATION_TEXTS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
    "</s>",
    "<eos>",
    "[EOS]",
    "[EOT]",
    "_<EOT>",
    "< EOT >",
)
"""Special tokens that end a turn, whatever the metadata says."""


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """What the tokenizer metadata says besides the tokens themselves."""

    kind: str
    pre: str
    bos_token_id: int | None
    eos_token_id: int | None
    unk_token_id: int | None
    pad_token_id: int | None
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    end_of_generation_ids: tuple[int, ...]
    """From the metadata's eos, eot and eom ids; those found by text come on top."""
    chat_templates: Mapping[str, str]
    """By name; the plain one is called "default"."""


def read_vocabulary(file: GgufFile) -> GgufVocabulary:
    """Read the scalar settings. Raises ModelLoadError naming the key at fault."""
    kind = file.require("tokenizer.ggml.model", str)
    if kind not in _KINDS:
        what = f" ({_OTHER_KINDS[kind]})" if kind in _OTHER_KINDS else ""
        raise ModelLoadError(
            f"{file.path}: tokenizer.ggml.model: {kind!r}{what} is not supported, {', '.join(_KINDS)} are; pass"
            " `tokenizer=` a directory or hub id that holds the model's tokenizer.json"
        )
    pre = file.optional("tokenizer.ggml.pre", str) or "default"
    num_tokens = len(file.require("tokenizer.ggml.tokens", GgufStrings))
    stops = [_token_id(file, name, num_tokens) for name in ("eos_token_id", "eot_token_id", "eom_token_id")]
    add_bos = file.optional("tokenizer.ggml.add_bos_token", bool)
    add_space_prefix = file.optional("tokenizer.ggml.add_space_prefix", bool)
    return GgufVocabulary(
        kind=kind,
        pre=pre,
        bos_token_id=_token_id(file, "bos_token_id", num_tokens),
        eos_token_id=stops[0],
        unk_token_id=_token_id(file, "unknown_token_id", num_tokens),
        pad_token_id=_token_id(file, "padding_token_id", num_tokens),
        add_bos=kind == "gemma4" or ((kind == "llama" or pre in ADDS_BOS) if add_bos is None else add_bos),
        add_eos=file.optional("tokenizer.ggml.add_eos_token", bool) or False,
        add_space_prefix=kind == "llama" if add_space_prefix is None else add_space_prefix,
        end_of_generation_ids=tuple(dict.fromkeys(i for i in stops if i is not None)),
        chat_templates=_chat_templates(file),
    )


def _token_id(file: GgufFile, name: str, num_tokens: int) -> int | None:
    key = f"tokenizer.ggml.{name}"
    value = file.optional(key, int)
    if value is None or value == 0xFFFFFFFF:  # llama.cpp writes -1 for "none"
        return None
    if not 0 <= value < num_tokens:
        raise ModelLoadError(f"{file.path}: {key}: {value}, but the vocabulary has {num_tokens} tokens")
    return value


def _chat_templates(file: GgufFile) -> dict[str, str]:
    key = "tokenizer.chat_template"
    templates = {}
    for name, value in file.metadata.items():
        if isinstance(value, str) and name == key:
            templates["default"] = value
        elif isinstance(value, str) and name.startswith(f"{key}."):
            templates[name[len(key) + 1 :]] = value
    return templates


def token_types(file: GgufFile, num_tokens: int) -> npt.NDArray[np.int32]:
    """Return each token's type; all normal if the file does not say."""
    key = "tokenizer.ggml.token_type"
    types = file.optional(key, np.ndarray)
    if types is None:
        return np.full(num_tokens, _NORMAL, dtype=np.int32)
    if types.dtype.kind not in "iu" or len(types) != num_tokens:
        raise ModelLoadError(f"{file.path}: {key}: {len(types)} {types.dtype.name}, expected {num_tokens} integers")
    return types.astype(np.int32)


def is_special_type(token_type: int) -> bool:
    """Tell whether a token of this type stands for no text: matched in prompts, hidden in outputs."""
    return token_type in (_CONTROL, _UNKNOWN)


def end_of_generation_ids(
    file: GgufFile, vocabulary: GgufVocabulary, token_to_id: Callable[[str], int | None]
) -> tuple[int, ...]:
    """Return every id that ends a generation: those the metadata names, then special tokens known by their text.

    Many files name only one of the several their model uses.
    """
    types = token_types(file, len(file.require("tokenizer.ggml.tokens", GgufStrings)))
    by_text = [token_id for text in END_OF_GENERATION_TEXTS if (token_id := token_to_id(text)) is not None]
    # Control tokens only: ordinary text can contain the others, such as the </s> of HTML.
    ids = [*vocabulary.end_of_generation_ids, *(i for i in by_text if types[i] == _CONTROL)]
    if all(token_to_id(text) in ids for text in ("<|return|>", "<|call|>")):
        ids = [i for i in ids if i != token_to_id("<|end|>")]  # there it ends one of several messages of a turn
    return tuple(dict.fromkeys(ids))


def build_tokenizer_json(file: GgufFile, vocabulary: GgufVocabulary) -> bytes:
    """Return the tokenizer as a tokenizer.json document.

    Raises: ModelLoadError naming the key at fault.
    """
    tokens = file.require("tokenizer.ggml.tokens", GgufStrings).tolist()
    vocab = _index_tokens(file, tokens)
    types = token_types(file, len(tokens))
    if vocabulary.kind == "gpt2":
        document = _byte_level_document(file, vocabulary, vocab)
    else:
        if vocabulary.kind == "llama":
            merges = _sentencepiece_merges(file, tokens, types)
        else:
            merges = file.require("tokenizer.ggml.merges", GgufStrings).tolist()
        document = _sentencepiece_document(vocabulary, tokens, vocab, merges)
    document["added_tokens"] = [
        _added_token(token_id, tokens[token_id], is_special_type(int(types[token_id])))
        for token_id in np.flatnonzero(np.isin(types, (_CONTROL, _USER_DEFINED, _UNKNOWN))).tolist()
        if tokens[token_id]
    ]
    document["post_processor"] = _template(vocabulary, tokens)
    document |= {"version": "1.0", "truncation": None, "padding": None}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _index_tokens(file: GgufFile, tokens: list[str]) -> dict[str, int]:
    """Return token -> id, after checking that there is one id for each text."""
    key = f"{file.path}: tokenizer.ggml.tokens"
    if not 1 <= len(tokens) <= MAX_VOCAB_SIZE:
        raise ModelLoadError(f"{key}: {len(tokens)} tokens, must be 1 to {MAX_VOCAB_SIZE}")
    vocab = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(vocab) != len(tokens):
        first = next(i for i, token in enumerate(tokens) if vocab[token] != i)
        raise ModelLoadError(f"{key}: token {tokens[first]!r} appears twice, as {first} and {vocab[tokens[first]]}")
    longest = max(tokens, key=len)
    if len(longest) > MAX_TOKEN_CHARS:
        raise ModelLoadError(f"{key}: token {vocab[longest]} has {len(longest)} characters, limit {MAX_TOKEN_CHARS}")
    return vocab


def _added_token(token_id: int, content: str, special: bool) -> Json:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "content": content, **flags, "special": special}


def _template(vocabulary: GgufVocabulary, tokens: list[str]) -> Json | None:
    """Return the post-processor that adds BOS and EOS as the file asks, or None."""
    before = [vocabulary.bos_token_id] if vocabulary.add_bos and vocabulary.bos_token_id is not None else []
    after = [vocabulary.eos_token_id] if vocabulary.add_eos and vocabulary.eos_token_id is not None else []
    if not before and not after:
        return None

    def special(token_id: int, segment: int) -> Json:
        return {"SpecialToken": {"id": tokens[token_id], "type_id": segment}}

    def sequence(name: str, segment: int) -> list[Json]:
        text: Json = {"Sequence": {"id": name, "type_id": segment}}
        return [*(special(i, segment) for i in before), text, *(special(i, segment) for i in after)]

    names = {tokens[i]: {"id": tokens[i], "ids": [i], "tokens": [tokens[i]]} for i in dict.fromkeys([*before, *after])}
    return {
        "type": "TemplateProcessing",
        "single": sequence("A", 0),
        "pair": [*sequence("A", 0), *sequence("B", 1)],
        "special_tokens": names,
    }


def _bpe(vocab: dict[str, int], merges: list[str], **options: object) -> Json:
    """Return a BPE model. Merges are written as "left right", which loads faster, unless a part has a space."""
    lines = "\n".join(["", *merges])
    is_plain = lines.count(" ") == len(merges) and "\n#version" not in lines  # a line the loader would skip
    pairs = merges if is_plain else [merge.split(" ", 1) for merge in merges]
    defaults: Json = {"dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    return {"type": "BPE", **defaults, **options, "vocab": vocab, "merges": pairs}


def _byte_level_document(file: GgufFile, vocabulary: GgufVocabulary, vocab: dict[str, int]) -> Json:
    patterns = SPLIT_PATTERNS.get(vocabulary.pre)
    if patterns is None:
        raise ModelLoadError(
            f"{file.path}: tokenizer.ggml.pre: {vocabulary.pre!r} is unknown; pass `tokenizer=` a directory or hub id"
            " that holds the model's tokenizer.json"
        )
    merges = file.require("tokenizer.ggml.merges", GgufStrings).tolist()
    byte_level: Json = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    splits: list[Json] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    return {
        "normalizer": {"type": "NFC"} if vocabulary.pre in NORMALIZES_NFC else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, byte_level]},
        "decoder": byte_level,
        "model": _bpe(
            vocab,
            merges,
            unk_token=None,
            fuse_unk=False,
            byte_fallback=False,
            ignore_merges=vocabulary.pre in IGNORES_MERGES,
        ),
    }


def _sentencepiece_document(
    vocabulary: GgufVocabulary, tokens: list[str], vocab: dict[str, int], merges: list[str]
) -> Json:
    def replace(old: str, new: str) -> Json:
        return {"type": "Replace", "pattern": {"String": old}, "content": new}

    prefix: list[Json] = [{"type": "Prepend", "prepend": _SPACE_MARK}] if vocabulary.add_space_prefix else []
    strip: list[Json] = (
        [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if vocabulary.add_space_prefix else []
    )
    unk = vocabulary.unk_token_id
    lines: Json = {"type": "Split", "pattern": {"Regex": r"\n+|[^\n]+"}, "behavior": "Isolated", "invert": False}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, replace(" ", _SPACE_MARK)]},
        "pre_tokenizer": lines if vocabulary.kind == "gemma4" else None,
        "decoder": {
            "type": "Sequence",
            "decoders": [replace(_SPACE_MARK, " "), {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        },
        "model": _bpe(
            vocab,
            merges,
            unk_token=None if unk is None else tokens[unk],
            fuse_unk=True,
            byte_fallback="<0x0A>" in vocab,
            ignore_merges=False,
        ),
    }


def _sentencepiece_merges(file: GgufFile, tokens: list[str], types: npt.NDArray[np.int32]) -> list[str]:
    """Return the merges. A user-defined token is matched before any join, and a space is never there to be joined."""
    key = "tokenizer.ggml.scores"
    scores = file.require(key, np.ndarray)
    if scores.dtype != np.float32 or len(scores) != len(tokens):
        raise ModelLoadError(
            f"{file.path}: {key}: {len(scores)} {scores.dtype.name}, expected {len(tokens)} float32 numbers"
        )
    if not np.isfinite(scores).all():
        raise ModelLoadError(f"{file.path}: {key}: holds numbers that are not finite")
    can_join = np.isin(types, (_NORMAL, _UNUSED))
    for token_id in np.flatnonzero(types == _USER_DEFINED).tolist():
        can_join[token_id] = _SPACE_MARK in tokens[token_id]
    can_join[[token_id for token_id, token in enumerate(tokens) if " " in token]] = False
    longest = max(map(len, tokens))
    if longest > MAX_JOINED_TOKEN_CHARS:
        raise ModelLoadError(
            f"{file.path}: tokenizer.ggml.tokens: a token has {longest} characters, at most {MAX_JOINED_TOKEN_CHARS}"
            " are allowed for SentencePiece"
        )
    return spm_merges(tokens, scores, can_join)
