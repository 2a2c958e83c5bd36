"""Finds a model's files by what the user calls it: a path, a built-in name, or an id on the Hugging Face hub."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from octavo.errors import ModelLoadError
from octavo.formats.gguf_split import models_among, part_names
from octavo.observe.patience import told_if_slow
from octavo.weights.builtin_models import BUILTIN_MODELS

T = TypeVar("T")

_HUB_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[\w.-]+)(?::(?P<file>[^:\\]+\.gguf))?")
_ALLOWED = ["*.safetensors", "*.json", "*.jinja"]
_ALLOWED_FOR_TOKENIZER = ["*.json", "*.jinja"]
_POOLING_FILE = "1_Pooling/config.json"
"""Of a sentence-transformers checkpoint: in a sub-directory, but wanted."""
_IGNORED = ["*/*.safetensors", "*/*.json", "consolidated*"]
"""Sub-directories hold copies in other formats, or parts of other models."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model lies on this machine."""

    kind: Literal["gguf", "safetensors", "config"]
    path: Path
    """The GGUF file, or the directory with config.json and, but for "config", the safetensors files."""
    name: str
    """What the user called it."""


def resolve_model_files(
    name: str | os.PathLike[str],
    revision: str | None = None,
    download_dir: str | os.PathLike[str] | None = None,
) -> ModelFiles:
    """Find a model, downloading it if need be. A path that exists wins over every other reading.

    Args:
        name: path of a GGUF file or a directory; `smollm2-135m` or another built-in name; `org/name`, or
            `org/name:file.gguf` for one file of a hub repository; any part of a split model stands for all.
        revision: branch, tag or commit, for hub ids.
        download_dir: keep downloads here instead of in the default caches.

    Raises: ModelLoadError that names what was tried and the way out.
    """
    text = os.fspath(name)
    path = Path(os.path.expanduser(text))
    if text and os.path.exists(path):
        return _local(path, text)
    if text in BUILTIN_MODELS:
        if revision is not None:
            raise ModelLoadError(f"{text}: a built-in model has no revisions; leave out revision={revision!r}")
        from octavo.weights.builtin import fetch_builtin  # downloading takes much that a start does not

        return ModelFiles("gguf", fetch_builtin(BUILTIN_MODELS[text], download_dir), text)
    match = _HUB_ID.fullmatch(text)
    if match is None or match["repo"].endswith((".gguf", ".safetensors")):
        raise ModelLoadError(_not_found(text))
    hub = _open_hub(revision, download_dir)
    repo, file = match["repo"], match["file"]
    if file is not None:
        return ModelFiles("gguf", _hub_gguf(hub, repo, file), text)
    return _hub_snapshot(hub, repo)


def resolve_description_files(
    name: str | os.PathLike[str],
    revision: str | None = None,
    download_dir: str | os.PathLike[str] | None = None,
) -> ModelFiles:
    """Find what says how a model is built: as `resolve_model_files`, but a config.json without weights will do.

    Of a hub repository the config is downloaded, and the generation config that may lie beside it.

    Raises: ModelLoadError that names what was tried and the way out.
    """
    text = os.fspath(name)
    path = Path(os.path.expanduser(text))
    if (path / "config.json").is_file() and not any(path.glob("*.safetensors")):
        return ModelFiles("config", path, text)
    match = _HUB_ID.fullmatch(text)
    if os.path.exists(path) or text in BUILTIN_MODELS or match is None or match["file"] is not None:
        return resolve_model_files(text, revision, download_dir)
    hub = _open_hub(revision, download_dir)
    config = _hub_file(hub, match["repo"], "config.json")
    with contextlib.suppress(ModelLoadError):  # a model need not have one
        _hub_file(hub, match["repo"], "generation_config.json")
    return ModelFiles("config", config.parent, text)


def resolve_tokenizer_path(
    name: str | os.PathLike[str],
    revision: str | None = None,
    download_dir: str | os.PathLike[str] | None = None,
) -> Path:
    """Find a tokenizer kept apart from the weights: a GGUF file, or a directory or hub id with tokenizer.json.

    Weights that lie beside it are neither needed nor downloaded.

    Raises: ModelLoadError that names what was tried and the way out.
    """
    text = os.fspath(name)
    path = Path(os.path.expanduser(text))
    if (path / "tokenizer.json").is_file():
        return path
    match = _HUB_ID.fullmatch(text)
    if not os.path.exists(path) and match is not None and match["file"] is None and text not in BUILTIN_MODELS:
        return _snapshot(_open_hub(revision, download_dir), match["repo"], _ALLOWED_FOR_TOKENIZER)
    return resolve_model_files(text, revision, download_dir).path


def _not_found(text: str) -> str:
    shown = text if len(text) <= 200 else f"{text[:200]}…"
    near = difflib.get_close_matches(text.lower()[:200], BUILTIN_MODELS, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return (
        f"{shown!r} is not an existing file or directory, not a built-in model ({', '.join(BUILTIN_MODELS)}), and not a"
        f" hub id (org/name or org/name:file.gguf){hint}"
    )


def _local(path: Path, name: str) -> ModelFiles:
    if not path.is_dir():
        if path.suffix == ".safetensors":
            raise ModelLoadError(f"{path}: a single safetensors file; pass its directory, which also has config.json")
        return ModelFiles("gguf", path, name)
    if any(path.glob("*.safetensors")) or any(path.glob("*.safetensors.index.json")):
        return ModelFiles("safetensors", path, name)
    ggufs = models_among(sorted(file.name for file in path.glob("*.gguf")))
    if len(ggufs) == 1:
        return ModelFiles("gguf", path / ggufs[0], name)
    if ggufs:
        names = ", ".join(ggufs[:5])
        raise ModelLoadError(f"{path}: holds {len(ggufs)} GGUF models ({names}); pass the path of one of them")
    if any(path.glob("*.bin")) or any(path.glob("*.pt")) or any(path.glob("*.pth")):
        raise ModelLoadError(
            f"{path}: the weights are pickle files, which can run code when opened and are refused; use a checkpoint in"
            " safetensors or GGUF format"
        )
    raise ModelLoadError(f"{path}: holds neither .safetensors nor .gguf files")


@dataclass(frozen=True, slots=True)
class _Hub:
    """The Hugging Face hub, or what its cache holds where it does not answer."""

    revision: str | None
    cache_dir: Path | None
    unreachable: str | None
    """Why the cache alone must do."""


def _open_hub(revision: str | None, download_dir: str | os.PathLike[str] | None) -> _Hub:
    """See whether the hub answers at all: once it has begun, its library retries for up to minutes."""
    cache_dir = None if download_dir is None else Path(download_dir).expanduser()
    return _Hub(revision, cache_dir, _why_unreachable())


def _why_unreachable() -> str | None:
    from huggingface_hub import constants, errors, get_session  # 0.3 s to import: only for hub models

    patience_s = constants.HF_HUB_ETAG_TIMEOUT
    waiting = f"waiting for {constants.ENDPOINT} to answer, for at most {patience_s} s (HF_HUB_ETAG_TIMEOUT)"
    try:
        with told_if_slow(waiting):
            get_session().head(constants.ENDPOINT, timeout=patience_s)
    except errors.OfflineModeIsEnabled:
        return "HF_HUB_OFFLINE is set"
    except Exception as error:  # of the HTTP client, which differs between versions of the library
        reason = str(error) or f"no answer within {patience_s} s, which HF_HUB_ETAG_TIMEOUT sets"
        return f"{constants.ENDPOINT} cannot be reached ({type(error).__name__}: {reason[:300]})"
    return None


def _hub_file(hub: _Hub, repo: str, file: str) -> Path:
    from huggingface_hub import hf_hub_download

    def download() -> Path:
        return Path(
            hf_hub_download(
                repo,
                file,
                revision=hub.revision,
                cache_dir=hub.cache_dir,
                local_files_only=hub.unreachable is not None,
            )
        )

    return _ask_hub(hub, f"{repo}:{file}", download)


def _hub_gguf(hub: _Hub, repo: str, file: str) -> Path:
    """Download a GGUF file, and all parts if it is one of several; return the first."""
    directory, slash, name = file.rpartition("/")
    names = part_names(name) or [name]
    paths = [_hub_file(hub, repo, f"{directory}{slash}{part}") for part in names]
    return paths[0]


def _snapshot(hub: _Hub, repo: str, allowed: list[str], ignored: list[str] = _IGNORED) -> Path:
    """Download the files of a repository that match; return their directory."""
    from huggingface_hub import snapshot_download

    def download() -> Path:
        return Path(
            snapshot_download(
                repo,
                revision=hub.revision,
                cache_dir=hub.cache_dir,
                allow_patterns=allowed,
                ignore_patterns=ignored,
                local_files_only=hub.unreachable is not None,
            )
        )

    return _ask_hub(hub, repo, download)


def _hub_snapshot(hub: _Hub, repo: str) -> ModelFiles:
    """Download a safetensors checkpoint; if there is none but a single GGUF file, that one."""
    from huggingface_hub import HfApi

    directory = _snapshot(hub, repo, _ALLOWED)
    if (directory / "modules.json").is_file():
        _snapshot(hub, repo, [_POOLING_FILE], ignored=[])
    if any(directory.glob("*.safetensors")):
        return ModelFiles("safetensors", directory, repo)
    if hub.unreachable is None:
        names = _ask_hub(hub, repo, lambda: HfApi().list_repo_files(repo, revision=hub.revision))
    else:
        names = sorted(str(file.relative_to(directory)) for file in directory.rglob("*.gguf"))
    ggufs = models_among([file for file in names if file.endswith(".gguf")])
    if len(ggufs) == 1:
        return ModelFiles("gguf", _hub_gguf(hub, repo, ggufs[0]), repo)
    if ggufs:
        raise ModelLoadError(
            f"{repo}: holds {len(ggufs)} GGUF models; name one, for example {repo}:{ggufs[0]} (there are also"
            f" {', '.join(ggufs[1:6])})"
        )
    if hub.unreachable is not None:
        raise _not_cached(hub, repo)
    raise ModelLoadError(f"{repo}: the hub repository holds neither .safetensors nor .gguf files")


def _not_cached(hub: _Hub, what: str) -> ModelLoadError:
    return ModelLoadError(
        f"{what}: not in the local cache, and {hub.unreachable or 'the hub cannot be reached'}; download it where there"
        f" is a network with `hf download {what.replace(':', ' ')}`, or pass a local path"
    )


def _ask_hub(hub: _Hub, what: str, action: Callable[[], T]) -> T:
    """Run a call to the hub; say what its failure means and what can be done."""
    from huggingface_hub import errors

    try:
        return action()
    except errors.GatedRepoError as error:
        way_out = "accept its terms on its page at the hub, then set HF_TOKEN or run `hf auth login`"
        raise ModelLoadError(f"{what}: access is restricted: {way_out}") from error
    except errors.RepositoryNotFoundError as error:
        near = difflib.get_close_matches(what.rpartition("/")[2].lower(), BUILTIN_MODELS, n=1, cutoff=0.5)
        hint = f"; or use the built-in {near[0]!r}" if near else ""
        raise ModelLoadError(
            f"{what}: there is no such file or directory here, and no such repository on the hub, or it is private: set"
            f" HF_TOKEN{hint}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelLoadError(f"{what}: the hub repository has no such revision") from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise _not_cached(hub, what) from error
    except errors.EntryNotFoundError as error:
        raise ModelLoadError(f"{what}: the hub repository has no such file") from error
    except Exception as error:  # the library lets its HTTP client's exceptions through, which differ between versions
        raise ModelLoadError(
            f"{what}: the hub cannot be reached: {type(error).__name__}: {str(error)[:300]}; try again, or pass a local"
            " path"
        ) from error
