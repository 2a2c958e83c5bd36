"""Token ids to text, one by one: exact UTF-8, stop strings, and what may be shown while more is to come.

Used twice for a request that has stop strings: inside `core` to end it at the right token, and by the output processor.
Both see the same ids, so both find the same end.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.sampling_params import SamplingParams
    from octavo.tokenizer.tokenizer import Tokenizer

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class _Pattern:
    """One stop string, and how much of it the text so far ends with.

    Source: Knuth, Morris, Pratt 1977, with the failure table built only as far as the text has matched, so that a huge
    stop string costs nothing until it is generated.
    """

    __slots__ = ("_fail", "matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        """Characters at the end of the text that are the beginning of `stop`."""
        self._fail: list[int] = []
        """Entry k - 1: the longest proper prefix of `stop` that is a suffix of its first k characters."""

    def feed(self, text: str, active: bool) -> int | None:
        """Return how many characters of `text` complete the stop string; None if they do not, or if not `active`."""
        stop, fail, matched = self.stop, self._fail, self.matched
        if matched == 0 and stop[0] not in text:
            return None
        for index, char in enumerate(text):
            while matched and stop[matched] != char:
                matched = fail[matched - 1]
            if stop[matched] == char:
                matched += 1
                if matched > len(fail):
                    self._extend_fail()
                if matched == len(stop):
                    if active:
                        return index + 1
                    matched = fail[matched - 1]
        self.matched = matched
        return None

    def _extend_fail(self) -> None:
        stop, fail = self.stop, self._fail
        last = len(fail)
        length = fail[-1] if fail else 0
        while length and stop[length] != stop[last]:
            length = fail[length - 1]
        fail.append(length + 1 if last and stop[length] == stop[last] else length)


class Detokenizer:
    """The text of one completion as its tokens come.

    Bytes of a character that is not complete yet are kept back, for ever if the output ends there; bytes that cannot
    be text become U+FFFD.
    """

    __slots__ = (
        "_decoder", "_include_stop", "_min_tokens", "_num_tokens", "_patterns", "_skipped", "_tokenizer", "text",
    )  # fmt: skip

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self.text = ""
        """All text so far; after a stop string was found, what is left of it."""
        self._tokenizer = tokenizer
        self._decoder = _Utf8Decoder("replace")
        self._skipped = tokenizer.special_token_ids if params.skip_special_tokens else frozenset()
        self._include_stop = params.include_stop_str_in_output
        self._patterns = [_Pattern(stop) for stop in params.stop or ()]
        self._min_tokens = params.min_tokens
        self._num_tokens = 0

    def append(self, token_id: int) -> str | None:
        """Add one token; return the stop string that it completes, if one does.

        Of several, the one whose last character comes first wins, then the first in the caller's list. Stop strings
        that are complete within the first `min_tokens` tokens do not count.

        Mutates: text.
        """
        self._num_tokens += 1
        piece = "" if token_id in self._skipped else self._decoder.decode(self._tokenizer.id_to_bytes(token_id))
        if not piece:
            return None
        before = len(self.text)
        self.text += piece
        if not self._patterns:
            return None
        active = self._num_tokens > self._min_tokens
        ends = [(end, order) for order, p in enumerate(self._patterns) if (end := p.feed(piece, active)) is not None]
        if not ends:
            return None
        end, order = min(ends)
        stop = self._patterns[order].stop
        self.text = self.text[: before + end - (0 if self._include_stop else len(stop))]
        return stop

    def extend(self, token_ids: Iterable[int]) -> str | None:
        """Add tokens until one completes a stop string; return that."""
        if self._patterns:
            return next((stop for token_id in token_ids if (stop := self.append(token_id)) is not None), None)
        to_bytes, skipped = self._tokenizer.id_to_bytes, self._skipped
        piece = b"".join([to_bytes(token_id) for token_id in token_ids if token_id not in skipped])
        is_plain = not self._decoder.buffer and piece.isascii()  # most are, and the decoder takes a microsecond
        self.text += piece.decode("ascii") if is_plain else self._decoder.decode(piece)
        return None

    @property
    def num_shown(self) -> int:
        """Characters of `text` that no stop string can take back."""
        if self._include_stop:
            return len(self.text)
        return len(self.text) - max((pattern.matched for pattern in self._patterns), default=0)


def decode_token(tokenizer: Tokenizer, token_id: int) -> str:
    """Return the text of one token alone, as logprobs show it."""
    return tokenizer.id_to_bytes(token_id).decode("utf-8", "replace")
