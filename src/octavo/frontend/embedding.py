"""How a model's hidden states become embeddings: what its files say about it, and the arithmetic.

Files are those of sentence-transformers, or the metadata of a GGUF file. Arithmetic is float64, its sums exact.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.errors import ModelLoadError
from octavo.formats.gguf import GgufFile
from octavo.formats.json_file import read_json_list, read_json_object

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from octavo.pooling_params import PoolingParams, PoolingType

MODULES_FILE = "modules.json"
_TYPES: Mapping[str, PoolingType] = {"lasttoken": "last", "mean": "mean"}
_GGUF_TYPES: Mapping[int, PoolingType] = {0: "last", 1: "mean", 3: "last"}
"""Those of llama.cpp; 0 is that the file does not say."""
_SMALLEST_NORM = 1e-12
"""A vector of zeros stays one."""


@dataclass(frozen=True, slots=True)
class EmbeddingConfig:
    """What an embedding of this model is."""

    pooling_type: PoolingType = "last"
    normalizes: bool = True
    """Whether it is scaled to length 1, unless a request says otherwise."""
    problem: str | None = None
    """Why the model gives none; its generations are not affected."""


def embedding_config(wanted: PoolingType | None, beside_weights: GgufFile | Path) -> EmbeddingConfig:
    """Return what the model's files say, or the option where there is one.

    Raises: `ModelLoadError` for files that cannot be read.
    """
    if isinstance(beside_weights, GgufFile):
        found = _of_gguf(beside_weights)
    elif (beside_weights / MODULES_FILE).is_file():
        found = _of_modules(beside_weights)
    else:
        found = EmbeddingConfig()
    return found if wanted is None else EmbeddingConfig(wanted, found.normalizes)


def _of_gguf(file: GgufFile) -> EmbeddingConfig:
    kind = file.metadata.get(f"{file.require('general.architecture', str)}.pooling_type", 0)
    if not isinstance(kind, int) or kind not in _GGUF_TYPES:
        return EmbeddingConfig(problem=f"its file asks for pooling of type {kind!r}")
    return EmbeddingConfig(_GGUF_TYPES[kind])


def _of_modules(directory: Path) -> EmbeddingConfig:
    """Read the modules of a sentence-transformers checkpoint: the transformer, pooling, perhaps more."""
    path = directory / MODULES_FILE
    modules = [module for module in read_json_list(path) if isinstance(module, dict)]
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    config = EmbeddingConfig(normalizes="Normalize" in kinds)
    unknown = sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"})
    if unknown:
        return replace(config, problem=f"its embeddings go through {', '.join(unknown)}, which is not supported")
    if "Pooling" not in kinds:
        return config
    name = str(modules[kinds.index("Pooling")].get("path", ""))
    if name != Path(name).name:
        raise ModelLoadError(f"{path}: {name!r} is not the name of a directory beside it")
    settings = directory / name / "config.json"
    if not settings.is_file():
        return replace(config, problem=f"its file {name}/config.json, which says how it is pooled, is not there")
    modes = _pooling_modes(read_json_object(settings))
    if len(modes) != 1 or modes[0] not in _TYPES:
        return replace(config, problem=f"its files ask for pooling by {' and '.join(modes) or 'nothing known'}")
    return replace(config, pooling_type=_TYPES[modes[0]])


def _pooling_modes(settings: Mapping[str, Any]) -> list[str]:
    """Return the modes that are on: "lasttoken", "mean", "cls", and others. They are written in two ways."""
    named = settings.get("pooling_mode")
    if isinstance(named, str):
        return [named]
    prefix = "pooling_mode_"
    return [
        name[len(prefix) :].partition("_")[0] for name, on in settings.items() if name.startswith(prefix) and on is True
    ]


def make_embedding(hidden_sum: NDArray[np.float64], num_rows: int, params: PoolingParams) -> list[float]:
    """Return the mean of so many rows, cut to the dimensions that are wanted, and scaled to length 1 if it is.

    The numbers are rounded to float32.
    """
    values: list[float] = (hidden_sum / num_rows)[: params.dimensions].tolist()
    if params.use_activation:
        length = max(_norm(values), _SMALLEST_NORM)
        values = [value / length for value in values]
    rounded: list[float] = np.array(values, np.float32).tolist()
    return rounded


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the cosine of the angle between two vectors; 0 if one has no length."""
    value = math.fsum(map(operator.mul, a, b)) / max(_norm(a) * _norm(b), _SMALLEST_NORM)
    return min(1.0, max(-1.0, value))


def _norm(values: Sequence[float]) -> float:
    return math.sqrt(math.fsum(map(operator.mul, values, values)))
