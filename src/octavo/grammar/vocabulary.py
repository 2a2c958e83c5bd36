"""The model's vocabulary as llguidance wants it: each token's bytes, which are special, which end the text."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from octavo.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from llguidance import LLTokenizer

    from octavo.tokenizer.tokenizer import Tokenizer


_MAX_KNOWN = 4096
"""Forced texts whose tokens are remembered: names of properties come again and again, in every request."""
_MAX_CHARS = 256
"""Of a longer forced text the beginning is enough: a mask needs its first token. The whole rest at every token of a
choice between long texts made a mask take 480 µs instead of 28."""
_WORDS = "[a-z]{1,8}"
"""Tokens that most texts allow or refuse together. With them JSON's masks take half the time."""


class TokenTable:
    """Tokens as bytes, and texts as tokens: what `llguidance.TokenizerWrapper` reads.

    Where a grammar leaves only one text to go on with, llguidance allows only the tokens that this makes of the text.
    """

    bos_token_id: int | None = None
    """Not known to it: no output begins with one."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_id: int) -> None:
        self.tokens = [tokenizer.id_to_bytes(token_id) for token_id in range(vocab_size)]
        self.special_token_ids = sorted(id_ for id_ in tokenizer.special_token_ids if id_ < vocab_size)
        self.eos_token_id = eos_token_id
        self._tokenizer = tokenizer
        self._encode_known = lru_cache(_MAX_KNOWN)(self._encode)

    def __call__(self, text: str) -> list[int]:
        """Return ordinary tokens whose bytes are exactly those of the text: the tokenizer's, if they are.

        Of a text of more than `_MAX_CHARS`, those of its beginning.
        """
        return self._encode_known(text[:_MAX_CHARS])

    def _encode(self, text: str) -> list[int]:
        data = text.encode()
        token_ids = self._tokenizer.encode(text, add_special_tokens=False)
        spelled = b"".join(self.tokens[token_id] for token_id in token_ids if token_id < len(self.tokens))
        if spelled == data and not self._specials.intersection(token_ids):
            return token_ids
        return self._longest_matches(data)

    @cached_property
    def _specials(self) -> frozenset[int]:
        return frozenset(self.special_token_ids)

    @cached_property
    def _by_bytes(self) -> dict[bytes, int]:
        return {data: id_ for id_, data in enumerate(self.tokens) if data and id_ not in self._specials}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._by_bytes), default=0)

    def _longest_matches(self, data: bytes) -> list[int]:
        """Return the longest token at each place, up to where there is none."""
        token_ids, position = [], 0
        while position < len(data):
            for end in range(min(len(data), position + self._longest), position, -1):
                token_id = self._by_bytes.get(data[position:end])
                if token_id is not None:
                    break
            else:
                break
            token_ids.append(token_id)
            position = end
        return token_ids


def load_vocabulary(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int]) -> LLTokenizer:
    """Return the tokenizer's ids below `vocab_size`, the width of the logits; ids beyond the tokenizer are no token.

    Special tokens stand for no text, so no grammar can ask for one, except that the text may end with any of
    `eos_token_ids`.

    Raises: `RequestError` if llguidance is missing, or if nothing ends a text.
    """
    try:
        from llguidance import LLTokenizer, TokenizerWrapper
    except ImportError:
        raise RequestError(
            "structured_outputs need llguidance, which is not installed: pip install 'octavo[structured]'.",
            parameter="structured_outputs",
        ) from None
    ends = sorted(token_id for token_id in eos_token_ids if token_id < vocab_size)
    if not ends:
        raise RequestError(
            "structured_outputs cannot be served: the model names no end-of-text token, so no output could end.",
            parameter="structured_outputs",
        )
    table = TokenTable(tokenizer, vocab_size, ends[0])
    slices = [*LLTokenizer.general_slices()]
    slices.insert(1, _WORDS)  # before the wider ones: a token belongs to the first that has it
    return LLTokenizer(TokenizerWrapper(table), n_vocab=vocab_size, eos_token=ends, slices=slices)
