"""What the engine is given to do: random prompts of given lengths, or those of a file. The same for the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from octavo.errors import ConfigError
from octavo.wording import counted

if TYPE_CHECKING:
    from octavo.tokenizer.tokenizer import Tokenizer

DATASET_NAMES = ("random", "custom")
DEFAULT_NUM_PROMPTS = 64
_MAX_LEN = 1 << 24


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One request."""

    prompt: str | list[int]
    """Text, or token ids."""
    output_len: int
    """Tokens to generate; the end of text is ignored."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Which requests to make.

    Raises: `ConfigError` for values that mean nothing.
    """

    dataset_name: Literal["random", "custom"] = "random"
    dataset_path: str | None = None
    """Of "custom": a file with one JSON object a line, with `prompt` and perhaps `output_tokens`."""
    input_len: int = 128
    """Tokens of each random prompt; their median where lengths vary."""
    output_len: int = 128
    """Tokens to generate for each prompt; their median where lengths vary."""
    num_prompts: int | None = None
    """Default: 64 random ones, or all of the file."""
    length_sigma: float = 0.0
    """Random lengths are log-normal with this sigma around the given ones; 0: all are equal."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dataset_name not in DATASET_NAMES:
            raise ConfigError(f"dataset_name must be one of {', '.join(DATASET_NAMES)}, got {self.dataset_name!r}.")
        for name in ("input_len", "output_len", "num_prompts"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= _MAX_LEN:
                raise ConfigError(f"{name} must be in [1, {_MAX_LEN}], got {value}.")
        if not 0.0 <= self.length_sigma <= 3.0:
            raise ConfigError(f"length_sigma must be in [0, 3], got {self.length_sigma}.")
        if (self.dataset_name == "custom") != (self.dataset_path is not None):
            raise ConfigError('dataset_path goes with dataset_name "custom": give both, or neither.')
        if self.dataset_name == "custom" and self.length_sigma:
            raise ConfigError('length_sigma varies random lengths; a "custom" dataset has its own.')

    def for_warm_up(self, count: int) -> Workload:
        """Return random prompts that are none of this workload's, so that they leave nothing in a cache for it."""
        return replace(self, dataset_name="random", dataset_path=None, num_prompts=count, seed=self.seed + 1)

    def items(self, tokenizer: Tokenizer, max_model_len: int) -> list[WorkItem]:
        """Return the requests. Log-normal lengths that do not fit the model's are cut to fit.

        Raises: `ConfigError` for a file that cannot be read or holds too little.
        """
        if self.dataset_name == "custom":
            return self.read()
        rng = random.Random(self.seed)
        token_ids = ordinary_token_ids(tokenizer)
        count = DEFAULT_NUM_PROMPTS if self.num_prompts is None else self.num_prompts
        lengths = [self._lengths(rng, max_model_len) for _ in range(count)]
        return [WorkItem(rng.choices(token_ids, k=num_input), num_output) for num_input, num_output in lengths]

    def _lengths(self, rng: random.Random, max_model_len: int) -> tuple[int, int]:
        if not self.length_sigma:
            return self.input_len, self.output_len
        num_input, num_output = (
            max(1, round(median * rng.lognormvariate(0.0, self.length_sigma)))
            for median in (self.input_len, self.output_len)
        )
        num_input = min(num_input, max(1, max_model_len - 1))
        return num_input, max(1, min(num_output, max_model_len - num_input))

    def read(self) -> list[WorkItem]:
        """Return the requests of a "custom" dataset.

        Raises: `ConfigError` for a file that cannot be read or holds too little.
        """
        assert self.dataset_path is not None, "checked when this was made"
        items = list(_read_items(Path(self.dataset_path), self.output_len))
        count = len(items) if self.num_prompts is None else self.num_prompts
        if not 0 < count <= len(items):
            raise ConfigError(
                f"{self.dataset_path} holds {counted(len(items), 'prompt')}, num_prompts asks for {count}."
            )
        return items[:count]


def ordinary_token_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of all tokens that are part of text."""
    return [token_id for token_id in range(tokenizer.vocab_size) if token_id not in tokenizer.special_token_ids]


def _read_items(path: Path, default_output_len: int) -> Iterator[WorkItem]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # JSON may hold U+2028 and the like
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The dataset {path} cannot be read: {error}.") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _parse_item(line, f"{path}, line {number}", default_output_len)


def _parse_item(line: str, where: str, default_output_len: int) -> WorkItem:
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON: {error}.") from error
    prompt = record.get("prompt") if isinstance(record, dict) else None
    if not isinstance(prompt, str) or not prompt:
        raise ConfigError(f'{where}: expected an object with a text "prompt".')
    output_len = record.get("output_tokens", default_output_len)
    if isinstance(output_len, bool) or not isinstance(output_len, int) or not 1 <= output_len <= _MAX_LEN:
        raise ConfigError(f"{where}: output_tokens must be an integer in [1, {_MAX_LEN}], got {output_len!r:.80}.")
    return WorkItem(prompt, output_len)
