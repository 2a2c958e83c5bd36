"""The split expressions behind the names in `tokenizer.ggml.pre`, and what else hangs on the name.

Text is split into pieces before byte-level BPE; which way decides the token ids. Several expressions apply in turn,
each to the pieces the one before left. Names and families as in llama.cpp's vocabulary code.
"""

from __future__ import annotations

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    + _SPACES,
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")
_DIGITS_APART = (r"\p{N}", _GPT2)
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")

_LLAMA3_NAMES = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2")

_FAMILIES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    ((*_LLAMA3_NAMES, "chatglm-bpe", "glm4", "dbrx", "smaug-bpe"), (_LLAMA3,)),
    (("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"), (_QWEN2,)),
    (("qwen35",), (_QWEN35,)),
    (
        ("gpt-2", "gpt2", "mpt", "olmo", "jais", "phi-2", "roberta-bpe", "granite-docling", "jina-es", "jina-de"),
        (_GPT2,),
    ),
    (("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS_APART),
    (("tekken",), (_TEKKEN,)),
    (("gpt-4o", "llama4", "minimax-m2", "kanana2"), (_GPT4O,)),
    (("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK_V3),
    (("deepseek-coder",), _DEEPSEEK_CODER),
    (("falcon",), _FALCON),
    (("default",), _DEFAULT),
)

SPLIT_PATTERNS: dict[str, tuple[str, ...]] = {name: patterns for names, patterns in _FAMILIES for name in names}

IGNORES_MERGES = frozenset((*_LLAMA3_NAMES, "tekken", "chatglm-bpe", "glm4"))
"""A piece that is a token as a whole is taken whole, whatever the merges say."""

ADDS_BOS = frozenset((*_LLAMA3_NAMES, "tekken"))
"""BOS is added unless the file says otherwise."""

NORMALIZES_NFC = frozenset(("qwen2", "qwen35", "deepseek-r1-qwen"))
"""Composed first, as the models' own tokenizers do (llama.cpp does not)."""
