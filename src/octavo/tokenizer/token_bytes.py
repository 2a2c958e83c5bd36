"""The exact bytes each token stands for, so that a stream can hold back half a character.

Decoding token by token with the library cannot tell "half of a character" from "a broken character". Bytes can.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import tokenizers

_SPACE_MARK = "▁"


def _byte_of_char() -> dict[str, int]:
    """Return the alphabet of byte-level BPE: printable Latin-1 stands for itself, other bytes are moved past U+0100.

    Source: Radford et al. 2019, the GPT-2 encoder.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(moved)}


_BYTE_OF_CHAR = _byte_of_char()


class TokenBytes:
    """Token id -> bytes, computed when first asked for."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._convert = _converter(backend)
        self._literal_ids = frozenset(
            token_id
            for token_id, token in backend.get_added_tokens_decoder().items()
            if token.special or self._convert is _byte_level_bytes
        )
        """Added tokens whose content is their text as it stands: in that of others, `▁` is a space as in any token."""
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        """Return the token's bytes; none for an id beyond the vocabulary."""
        data = self._known.get(token_id)
        if data is None:
            data = self._known[token_id] = self._compute(token_id)
        return data

    def _compute(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        return token.encode() if token_id in self._literal_ids else self._convert(token)


def _converter(backend: tokenizers.Tokenizer) -> Callable[[str], bytes]:
    """Choose how tokens become bytes by the decoder the tokenizer declares."""
    state = backend.decoder.__getstate__() if backend.decoder is not None else b"{}"
    decoder = json.loads(state)
    kinds = {part.get("type") for part in (decoder, *decoder.get("decoders", ()))}
    if "ByteLevel" in kinds:
        return _byte_level_bytes
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return _sentencepiece_bytes
    return lambda token: backend.decoder.decode([token]).encode() if backend.decoder is not None else token.encode()


def _byte_level_bytes(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF_CHAR[char] for char in token])
    except KeyError:  # not of the alphabet: the library passes such a token through as text
        return token.encode()


def _sentencepiece_bytes(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.replace(_SPACE_MARK, " ").encode()
