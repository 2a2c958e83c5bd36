"""What a tokenizer needs to know besides its vocabulary, and how its vocabulary is loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import tokenizers

from octavo.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """The meaning of some tokens, and the chat templates."""

    name_or_path: str
    bos_token_id: int | None
    eos_token_id: int | None
    unk_token_id: int | None
    pad_token_id: int | None
    eos_token_ids: tuple[int, ...]
    """All ids that end a generation, eos first if there is one."""
    chat_templates: Mapping[str, str]
    """By name; the plain one is called "default"."""


def load_backend(document: bytes, origin: str | os.PathLike[str]) -> tokenizers.Tokenizer:
    """Load a tokenizer.json document. Raises ModelLoadError naming where it came from."""
    try:
        return tokenizers.Tokenizer.from_buffer(document)
    except BaseException as error:
        # The library raises bare Exception, and PanicException, which is not one, where it trips over itself.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelLoadError(f"{os.fspath(origin)}: tokenizer: cannot be built: {str(error)[:500]}") from None
