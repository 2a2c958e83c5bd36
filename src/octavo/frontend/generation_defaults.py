"""The sampling parameters that a model's authors recommend: its generation_config.json."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import ConfigError, RequestError
from octavo.formats.json_file import read_json_object
from octavo.sampling_params import SamplingParams

if TYPE_CHECKING:
    from octavo.config import EngineConfig

_FILE_NAME = "generation_config.json"
RECOMMENDED = {
    "repetition_penalty": "repetition_penalty",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "max_new_tokens": "max_tokens",
}
"""Entry of the file: sampling parameter."""


def default_sampling_params(config: EngineConfig, model_dir: Path | None) -> SamplingParams:
    """Return what `sampling_params=None` means.

    Args:
        model_dir: where the model's own file would be; None where it has none.

    Raises: `ConfigError` for a value that cannot be used, naming the way around it.
    """
    values = {**_read(config.generation_config, model_dir), **(config.override_generation_config or {})}
    known = {RECOMMENDED[name]: value for name, value in values.items() if name in RECOMMENDED and value is not None}
    try:
        return SamplingParams(**known)
    except RequestError as error:
        raise ConfigError(
            f"the model's generation config cannot be used: {error} Set generation_config='vllm' to ignore it, or "
            "correct the entry with override_generation_config."
        ) from error


def _read(source: str, model_dir: Path | None) -> dict[str, Any]:
    if source == "vllm":
        return {}
    if source == "auto":
        path = None if model_dir is None else model_dir / _FILE_NAME
        return read_json_object(path) if path is not None and path.exists() else {}
    path = Path(source).expanduser()
    path = path / _FILE_NAME if path.is_dir() else path
    if not path.exists():
        raise ConfigError(f"generation_config: {path} does not exist; give a directory, 'auto' or 'vllm'.")
    return read_json_object(path)
