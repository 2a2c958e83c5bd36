"""Reads a Hugging Face tokenizer directory: tokenizer.json and the small files that say what its tokens mean."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tokenizers

from octavo.errors import ModelLoadError
from octavo.formats.json_file import read_json_object
from octavo.formats.mapped_file import read_small_file
from octavo.tokenizer.settings import TokenizerSettings, load_backend

MAX_TOKENIZER_BYTES = 128 << 20
"""Limit of tokenizer.json; the largest known one has 33 MB."""
_MAX_TEMPLATE_BYTES = 4 << 20

Json = Mapping[str, object]


def read_directory(path: Path) -> tuple[tokenizers.Tokenizer, TokenizerSettings]:
    """Return the tokenizer of a directory, and its settings.

    Raises: ModelLoadError naming the file at fault.
    """
    backend = load_backend(_read(path / "tokenizer.json", MAX_TOKENIZER_BYTES, _missing_hint(path)), path)
    backend.no_truncation()
    backend.no_padding()
    config = _optional_json(path / "tokenizer_config.json")
    special = {**_optional_json(path / "special_tokens_map.json"), **{k: v for k, v in config.items() if v is not None}}
    ids = {name: _token_id(backend, special.get(f"{name}_token")) for name in ("bos", "eos", "unk", "pad")}
    return backend, TokenizerSettings(
        name_or_path=str(path),
        bos_token_id=ids["bos"],
        eos_token_id=ids["eos"],
        unk_token_id=ids["unk"],
        pad_token_id=ids["pad"],
        eos_token_ids=_eos_token_ids(path, ids["eos"]),
        chat_templates=_chat_templates(path, config),
    )


def _missing_hint(path: Path) -> str:
    if any((path / name).exists() for name in ("tokenizer.model", "vocab.json", "tekken.json")):
        return (
            "missing; convert the tokenizer once with transformers:"
            f" AutoTokenizer.from_pretrained({str(path)!r}).save_pretrained({str(path)!r})"
        )
    return "missing; pass `tokenizer=` a directory or hub id that holds it"


def _read(path: Path, max_bytes: int, missing: str) -> bytes:
    try:
        return read_small_file(path, max_bytes)
    except FileNotFoundError:
        raise ModelLoadError(f"{path}: {missing}") from None
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror or error}") from error


def _optional_json(path: Path) -> Json:
    return read_json_object(path) if path.is_file() else {}


def _token_id(backend: tokenizers.Tokenizer, token: object) -> int | None:
    """Return the id of a token given as text, or as the object an AddedToken is saved as."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return backend.token_to_id(text) if isinstance(text, str) else None


def _eos_token_ids(path: Path, eos: int | None) -> tuple[int, ...]:
    """Return every id that ends a generation: no one file is sure to name them all."""
    config = _optional_json(path / "config.json")
    text_config = config.get("text_config")
    sources = (
        eos,
        _optional_json(path / "generation_config.json").get("eos_token_id"),
        config.get("eos_token_id"),
        text_config.get("eos_token_id") if isinstance(text_config, Mapping) else None,
    )
    ids: dict[int, None] = {}
    for source in sources:
        for value in source if isinstance(source, list) else [source]:
            if type(value) is int and value >= 0:
                ids[value] = None
    return tuple(ids)


def _chat_templates(path: Path, config: Json) -> dict[str, str]:
    """Return the templates by name: those of tokenizer_config.json, then those in files, which win."""
    templates: dict[str, str] = {}
    declared = config.get("chat_template")
    if isinstance(declared, str):
        templates["default"] = declared
    elif isinstance(declared, list):
        for entry in declared:
            if isinstance(entry, Mapping) and isinstance(entry.get("template"), str):
                templates[str(entry.get("name"))] = str(entry["template"])
    extra = sorted((path / "additional_chat_templates").glob("*.jinja"))
    for name, file in [("default", path / "chat_template.jinja"), *((file.stem, file) for file in extra)]:
        if file.is_file():
            templates[name] = _read(file, _MAX_TEMPLATE_BYTES, "missing").decode("utf-8", "replace")
    return templates
