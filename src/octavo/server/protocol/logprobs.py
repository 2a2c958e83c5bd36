"""Logprobs in OpenAI's two forms, and those of the prompt in vLLM's: finite numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from octavo.outputs import finite_logprob
from octavo.server.protocol.responses import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprobEntries,
    TokenLogprob,
    TopLogprob,
)

if TYPE_CHECKING:
    from octavo.outputs import Logprob, PromptLogprobs


class TokenTexts(Protocol):
    """What answers need of a tokenizer."""

    def id_to_bytes(self, token_id: int) -> bytes:
        """Return exactly the bytes of a token."""
        ...

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        """Return the text of token ids."""
        ...


def token_text(texts: TokenTexts, token_id: int) -> str:
    """Return the text of one token; parts of characters are replaced."""
    return texts.id_to_bytes(token_id).decode("utf-8", "replace")


def completion_logprobs(
    token_ids: Sequence[int],
    positions: Sequence[dict[int, Logprob] | None],
    texts: TokenTexts,
    *,
    offset: int,
    as_ids: bool,
) -> CompletionLogprobs:
    """Return the parallel lists of a completion.

    Args:
        positions: one for each token; None where nothing predicted it.
        offset: characters before the first token.
        as_ids: write "token_id:5" instead of a token's text.
    """
    result = CompletionLogprobs([], [], [], [])
    for token_id, entries in zip(token_ids, positions, strict=True):
        own = None if entries is None else entries.get(token_id)
        text = token_text(texts, token_id)
        result.tokens.append(_name(token_id, text, as_ids))
        result.text_offset.append(offset)
        offset += len(text)
        result.token_logprobs.append(None if own is None else finite_logprob(own.logprob))
        result.top_logprobs.append(None if entries is None else _by_text(entries, as_ids))
    return result


def chat_logprobs(
    token_ids: Sequence[int],
    positions: Sequence[dict[int, Logprob]],
    texts: TokenTexts,
    *,
    num_top: int,
    as_ids: bool,
) -> ChatLogprobs:
    """Return one entry per token.

    Args:
        num_top: most probable tokens to list with each; -1 lists all there are.
        as_ids: write "token_id:5" instead of a token's text.
    """
    content = []
    for token_id, entries in zip(token_ids, positions, strict=True):
        top = sorted(entries.items(), key=lambda item: item[1].rank or 0)
        if num_top >= 0:
            top = [item for item in top if (item[1].rank or 0) <= num_top]
        own = _token(token_id, entries[token_id], texts, as_ids)
        tops = [_token(other, entry, texts, as_ids) for other, entry in top]
        content.append(TokenLogprob(own.token, own.logprob, own.bytes, tops))
    return ChatLogprobs(content)


def prompt_logprob_entries(positions: PromptLogprobs) -> PromptLogprobEntries:
    """Return vLLM's form of a prompt's logprobs."""
    return [
        None
        if entries is None
        else {
            str(token_id): {
                "logprob": finite_logprob(entry.logprob),
                "rank": entry.rank,
                "decoded_token": entry.decoded_token,
            }
            for token_id, entry in entries.items()
        }
        for entries in positions
    ]


def _by_text(entries: dict[int, Logprob], as_ids: bool) -> dict[str, float]:
    """Two tokens may have the same text, for example parts of a character: the first, chosen or likelier, stays."""
    named: dict[str, float] = {}
    for token_id, entry in entries.items():
        named.setdefault(_name(token_id, entry.decoded_token or "", as_ids), finite_logprob(entry.logprob))
    return named


def _token(token_id: int, entry: Logprob, texts: TokenTexts, as_ids: bool) -> TopLogprob:
    own_bytes = texts.id_to_bytes(token_id)
    text = own_bytes.decode("utf-8", "replace")
    return TopLogprob(_name(token_id, text, as_ids), finite_logprob(entry.logprob), list(own_bytes))


def _name(token_id: int, text: str, as_ids: bool) -> str:
    return f"token_id:{token_id}" if as_ids else text
