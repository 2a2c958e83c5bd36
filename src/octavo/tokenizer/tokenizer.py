"""The tokenizer a model runs with: text to ids and back, with the names a transformers or vLLM user expects."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, overload

import tokenizers

from octavo.errors import ModelLoadError, RequestError
from octavo.formats.gguf import GgufFile, open_gguf
from octavo.tokenizer import gguf_vocab, hf_directory, vocab_cache
from octavo.tokenizer.settings import TokenizerSettings, load_backend
from octavo.tokenizer.token_bytes import TokenBytes

logger = logging.getLogger("octavo")


class Tokenizer:
    """One tokenizer, whatever file it came from."""

    def __init__(self, backend: tokenizers.Tokenizer, settings: TokenizerSettings) -> None:
        self.backend = backend
        self.name_or_path = settings.name_or_path
        self.bos_token_id = settings.bos_token_id
        self.eos_token_id = settings.eos_token_id
        self.unk_token_id = settings.unk_token_id
        self.pad_token_id = settings.pad_token_id
        self.eos_token_ids = settings.eos_token_ids
        self.chat_templates = dict(settings.chat_templates)

    def __repr__(self) -> str:
        return f"Tokenizer({self.name_or_path!r}, vocab_size={self.vocab_size})"

    @classmethod
    def from_path(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Load from a GGUF file or a Hugging Face directory."""
        path = Path(path)
        if path.is_dir():
            return cls.from_directory(path)
        return cls.from_gguf(open_gguf(path))

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Load tokenizer.json and its companions. Raises ModelLoadError naming the file at fault."""
        return cls(*hf_directory.read_directory(Path(path)))

    @classmethod
    def from_gguf(cls, file: GgufFile) -> Tokenizer:
        """Rebuild the tokenizer from the file's metadata, or load what an earlier start rebuilt.

        Raises: ModelLoadError naming the file and the metadata key at fault.
        """
        vocabulary = gguf_vocab.read_vocabulary(file)
        backend = _cached_backend(file, vocabulary)
        return cls(
            backend,
            TokenizerSettings(
                name_or_path=str(file.path),
                bos_token_id=vocabulary.bos_token_id,
                eos_token_id=vocabulary.eos_token_id,
                unk_token_id=vocabulary.unk_token_id,
                pad_token_id=vocabulary.pad_token_id,
                eos_token_ids=gguf_vocab.end_of_generation_ids(file, vocabulary, backend.token_to_id),
                chat_templates=vocabulary.chat_templates,
            ),
        )

    # ---------------------------------------------------------------- text and ids

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text, with BOS and EOS as the model wants them unless switched off."""
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """Tokenise several texts on all cores. Releases the GIL, so other threads go on meanwhile."""
        try:
            for text in texts:
                str.encode(text)  # tokenizers 0.20.0 drops half a character without a word
            encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        except (TypeError, UnicodeEncodeError):  # a lone surrogate, or not a string
            raise RequestError("the text is not valid Unicode (a lone surrogate?)", parameter="prompt") from None
        return [encoding.ids for encoding in encodings]

    def decode(self, token_ids: int | Iterable[int], skip_special_tokens: bool = False) -> str:
        """Return the text of token ids; ids beyond the vocabulary have none."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def batch_decode(self, sequences: Iterable[Iterable[int]], skip_special_tokens: bool = False) -> list[str]:
        """Decode several sequences."""
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def id_to_bytes(self, token_id: int) -> bytes:
        """Return exactly the bytes a token adds to the text; they may be part of a character."""
        return self._token_bytes[token_id]

    @cached_property
    def _token_bytes(self) -> TokenBytes:
        return TokenBytes(self.backend)

    # ---------------------------------------------------------------- vocabulary

    @cached_property
    def vocab_size(self) -> int:
        """Ids the tokenizer knows, added tokens included; the model's logits may be wider."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def __len__(self) -> int:
        return self.vocab_size

    def get_vocab(self) -> dict[str, int]:
        """Return token -> id, added tokens included."""
        return self.backend.get_vocab(with_added_tokens=True)

    @overload
    def convert_ids_to_tokens(self, ids: int) -> str | None: ...
    @overload
    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str | None]: ...
    def convert_ids_to_tokens(self, ids: int | Iterable[int]) -> str | list[str | None] | None:
        """Return the token of an id as the vocabulary spells it, or a list of them; None beyond the vocabulary."""
        if isinstance(ids, int):
            return self.backend.id_to_token(ids)
        return [self.backend.id_to_token(token_id) for token_id in ids]

    @overload
    def convert_tokens_to_ids(self, tokens: str) -> int | None: ...  # type: ignore[overload-overlap]  # a str is iterable
    @overload
    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int | None]: ...
    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> int | list[int | None] | None:
        """Return the id of a token, or a list of them; the unknown token's id for what the vocabulary lacks."""
        if isinstance(tokens, str):
            token_id = self.backend.token_to_id(tokens)
            return self.unk_token_id if token_id is None else token_id
        return [self.convert_tokens_to_ids(token) for token in tokens]

    # ---------------------------------------------------------------- special tokens

    @cached_property
    def _added_tokens(self) -> Mapping[int, tokenizers.AddedToken]:
        return self.backend.get_added_tokens_decoder()

    @cached_property
    def special_token_ids(self) -> frozenset[int]:
        """Ids that stand for no text: what `skip_special_tokens` leaves out."""
        return frozenset(token_id for token_id, token in self._added_tokens.items() if token.special)

    @property
    def all_special_ids(self) -> list[int]:
        """The special ids in order."""
        return sorted(self.special_token_ids)

    @property
    def all_special_tokens(self) -> list[str]:
        """The special tokens in the order of their ids."""
        return [self._added_tokens[token_id].content for token_id in self.all_special_ids]

    @property
    def bos_token(self) -> str | None:
        """The token a text begins with."""
        return self._token(self.bos_token_id)

    @property
    def eos_token(self) -> str | None:
        """The token a text ends with."""
        return self._token(self.eos_token_id)

    @property
    def unk_token(self) -> str | None:
        """The token for what the vocabulary cannot spell."""
        return self._token(self.unk_token_id)

    @property
    def pad_token(self) -> str | None:
        """The token that fills up batches."""
        return self._token(self.pad_token_id)

    def _token(self, token_id: int | None) -> str | None:
        return None if token_id is None else self.backend.id_to_token(token_id)

    # ---------------------------------------------------------------- chat

    @property
    def chat_template(self) -> str | None:
        """The plain chat template, or None: a base model has none."""
        return self.chat_templates.get("default")

    @overload
    def apply_chat_template(
        self, /, conversation: Sequence[Mapping[str, Any]], *, tokenize: Literal[False], **options: Any
    ) -> str: ...
    @overload
    def apply_chat_template(
        self, /, conversation: Sequence[Mapping[str, Any]], *, tokenize: Literal[True] = ..., **options: Any
    ) -> list[int]: ...
    def apply_chat_template(
        self,
        /,
        conversation: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **chat_template_kwargs: Any,
    ) -> str | list[int]:
        """Render a conversation with the model's chat template, as text or as token ids.

        The template writes BOS itself where the model wants one, so none is added. Tools that it has no place for are
        warned about.

        Args:
            chat_template: a template, or the name of one of the model's, instead of its plain one.

        Raises: RequestError for messages the template refuses, or if there is no template.
        """
        from octavo.tokenizer.chat_template import render_chat  # Jinja takes 80 ms to import: only if somebody chats

        arguments = self.render_arguments(
            conversation,
            tools=tools,
            documents=documents,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **chat_template_kwargs,
        )
        if tools and "tools" not in arguments["template"]:
            logger.warning("The chat template shows no tools to the model; pass a chat_template that does.")
        text = render_chat(**arguments)
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def render_arguments(
        self,
        /,
        conversation: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **chat_template_kwargs: Any,
    ) -> dict[str, Any]:
        """Return the arguments of `chat_template.render_chat` for a conversation, which may be called elsewhere.

        Arguments are those of `apply_chat_template`. Raises: RequestError if there is no template.
        """
        names = ("bos_token", "eos_token", "unk_token", "pad_token")
        return {
            "template": self._choose_template(chat_template, bool(tools)),
            "messages": conversation,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "special_tokens": {name: token for name in names if (token := getattr(self, name)) is not None},
            "chat_template_kwargs": chat_template_kwargs,
        }

    def _choose_template(self, template: str | None, has_tools: bool) -> str:
        if template is not None:
            if not isinstance(template, str):
                kind = type(template).__name__
                raise RequestError(f"chat_template must be text, got {kind}", parameter="chat_template", value=template)
            return self.chat_templates.get(template, template)
        if has_tools and "tool_use" in self.chat_templates:
            return self.chat_templates["tool_use"]
        if self.chat_template is None:
            named = f"; it has these: {', '.join(sorted(self.chat_templates))}" if self.chat_templates else ""
            raise RequestError(
                f"the model has no default chat template{named}; pass chat_template=, or use generate() with a prompt",
                parameter="chat_template",
            )
        return self.chat_template


def _cached_backend(file: GgufFile, vocabulary: gguf_vocab.GgufVocabulary) -> tokenizers.Tokenizer:
    path = vocab_cache.cache_path(file)
    document = vocab_cache.read_entry(path)
    if document is not None:
        try:
            return load_backend(document, path)
        except ModelLoadError:
            pass  # written by something else than us: rebuild it
    document = gguf_vocab.build_tokenizer_json(file, vocabulary)
    backend = load_backend(document, file.path)
    vocab_cache.write_entry(path, document)
    return backend
