"""Engine options: what a user may set (`EngineConfig`), and the frozen configs the parts receive.

The CLI's flags and the table of options in the documentation are generated from `EngineConfig`: its field names, types,
defaults, and the docstring under each field.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from octavo.errors import ConfigError
from octavo.pooling_params import PoolingType
from octavo.vllm_options import takes_foreign_options

Dtype = Literal["auto", "float32", "float16", "bfloat16", "half", "float"]
Quantization = Literal["q8", "q4"]
KvCacheDtype = Literal["auto", "float32", "float16", "bfloat16", "int8"]
LogprobsMode = Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]
SchedulingPolicy = Literal["fcfs", "priority"]

BLOCK_SIZES = (16, 32, 64, 128)
MAX_CACHE_BLOCKS = 2**31 - 2
"""Blocks of one group: their ids are 32-bit numbers, of which kernels use one as the end."""

DEFAULT_KV_MEMORY_SHARE = 0.4
"""Leaves room for the rest of the machine: unlike a GPU's, this memory is shared with everything else that runs."""


@takes_foreign_options
@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything a user may set about an engine. Plain values only, so it can be written as JSON and read back.

    None is the default, "decided when the model is known" where that is None, too; `frontend/resolve.py` does so.
    vLLM's other options are taken as keywords where they ask for nothing.

    Raises: `ConfigError` for a value that cannot work with any model, or an effect that cannot be had; `TypeError` for
        an unknown name.
    """

    model: str
    """A GGUF file, a directory in Hugging Face's layout, a hub id (`org/name` or `org/name:file.gguf`), or a built-in
    name such as `smollm2-135m`."""
    tokenizer: str | None = None
    """Where the tokenizer is, in the same forms as the model. Default: with the model."""
    revision: str | None = None
    """Branch, tag or commit of a hub id. Default: the repository's main branch."""
    download_dir: str | None = None
    """Directory for downloaded models. Default: the hub's own cache, or the user's cache directory for built-in
    names."""
    hf_overrides: Mapping[str, Any] | None = None
    """Entries that replace those of the model's config.json, for example rope settings."""
    dtype: Dtype = "auto"
    """Accepted for compatibility. Arithmetic is float32, or exact integers with float32 scales, and weights keep the
    bits of their file unless `quantization` rounds them, so no choice is left."""
    quantization: Quantization | None = None
    """Round float weights while loading, in groups of 32: "q8" to 8 bits, "q4" to 4 bits with embedding and head in 8.
    A half or a quarter of bfloat16's memory, and several times its speed. Default: as the file stores them."""
    cache_quantized_weights: bool = False
    """Keep weights that `quantization` rounded in the user's cache directory, so that the next start only reads them.
    Takes as much disk as they take memory."""
    use_tqdm_on_load: bool = True
    """Show a progress bar while weights are quantised, if stderr is a terminal."""
    max_model_len: int | str | None = None
    """Limit of prompt plus output of one request, in tokens; also "32k" (32,000), "32K" (32,768), or "auto" (-1) for
    what the KV cache can hold. Default: the length that the model was made for."""
    max_num_seqs: int | None = None
    """Requests that run at once; more are queued. A seat costs little memory, the KV cache is the real limit. Default:
    256, or max_num_batched_tokens where that is less."""
    max_num_batched_tokens: int | None = None
    """Tokens computed in one step. More makes prompts slightly faster and steps longer: at 512 a step of a 1B model
    takes about a second on two cores, and activations stay small. Default: 512, or max_num_seqs where that is more."""
    long_prefill_token_threshold: int | None = None
    """Beside other requests, running or waiting, a prompt takes at most this many tokens of a step; 0 switches that
    off. Default: half of max_num_batched_tokens, so that a long prompt does not hold up the next."""
    target_itl_ms: float | None = None
    """While requests decode whose tokens are streamed, prompts take as much of a step as leaves it about this long, in
    milliseconds, as measured, or 1.5 times as long as it takes without prompts where that is more. Default: 2.2 times
    that; no such limit with long_prefill_token_threshold=0."""
    enable_chunked_prefill: bool = True
    """Let a prompt be computed over several steps. Without, max_num_batched_tokens must be at least max_model_len."""
    scheduling_policy: SchedulingPolicy = "fcfs"
    """Who goes first: "fcfs" by arrival, "priority" by the request's priority (lower first), then arrival."""
    block_size: int = 16
    """Tokens in one block of the KV cache: 16, 32, 64 or 128. Small blocks waste less and match longer prefixes."""
    enable_prefix_caching: bool = True
    """Reuse the keys and values of prompts that begin alike. Answers do not change by a bit."""
    kv_cache_dtype: KvCacheDtype = "auto"
    """How keys and values are stored; "auto" is float16. "int8" takes half the memory and less time to read: long
    contexts decode faster, and perplexity changes by about 0.1 %. Values too large for either are cut, counted
    (`octavo:kv_values_saturated`) and warned about; "bfloat16" and "float32" hold them."""
    kv_cache_memory_bytes: int | str | None = None
    """Limit of the KV cache, in bytes; also "2G" (binary) or "2g" (decimal). Default: see gpu_memory_utilization."""
    gpu_memory_utilization: float | None = None
    """Share of the memory still available after the weights that the KV cache may grow to, in (0, 1]. The name is
    vLLM's; the memory is the machine's, or the container's. It is taken as it is used. Default: 0.4."""
    num_gpu_blocks_override: int | None = None
    """Blocks in each attention group of the KV cache, and at most as many states of recurrent layers, instead of a
    limit in bytes. For tests and measurements."""
    seed: int = 0
    """Requests without a seed of their own derive it from this one and their order of arrival."""
    max_logprobs: int = 20
    """Most logprobs per position that a request may ask for; -1 for no limit."""
    logprobs_mode: LogprobsMode = "raw_logprobs"
    """What logprobs report: the model's own distribution (raw), or after penalties, temperature and truncation
    (processed); as logprobs or as logits."""
    generation_config: str = "auto"
    """Source of the default sampling parameters: "auto" is the model's generation_config.json, "vllm" none, otherwise
    the path of a directory that has one."""
    override_generation_config: Mapping[str, Any] | None = None
    """Entries that replace those of the generation config."""
    pooling_type: PoolingType | None = None
    """Which hidden states of a prompt make its embedding: "last" is that of its last token, "mean" the mean of all.
    Default: what the model's files say, as sentence-transformers or llama.cpp write it, else "last"."""
    num_threads: int | None = None
    """Threads that compute. Default: the physical cores that this process may use, container limits respected."""
    activation_quantization: bool = True
    """Quantise activations to 8 bits where weights are quantised: faster, with a loss far below that of the
    weights'."""
    record_events: bool = False
    """Keep the last 65,536 events of the engine, with their times, for `LLM.events()`: admitted, deferred, preempted,
    blocks allocated and shared, each step. Costs some microseconds a step."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(EngineConfig).items():
            self._set(name, _of_type(name, hint, getattr(self, name)))
        if self.block_size not in BLOCK_SIZES:
            raise ConfigError(f"block_size must be one of {BLOCK_SIZES}, got {self.block_size!r}.")
        if self.max_model_len != "auto":
            length = parse_count("max_model_len", self.max_model_len)
            self._set("max_model_len", "auto" if length == -1 else length)
        self._set("kv_cache_memory_bytes", parse_count("kv_cache_memory_bytes", self.kv_cache_memory_bytes))
        for name, (low, high) in _INT_RANGES.items():
            value = getattr(self, name)
            if value is None or value == "auto":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ConfigError(f"{name} must be an integer in [{low}, {high}], got {value!r}.")
        share = self.gpu_memory_utilization
        if share is not None and not (isinstance(share, (int, float)) and math.isfinite(share) and 0 < share <= 1):
            raise ConfigError(f"gpu_memory_utilization must be in (0, 1], got {share!r}.")
        target = self.target_itl_ms
        if target is not None and not (isinstance(target, (int, float)) and math.isfinite(target) and target > 0):
            raise ConfigError(f"target_itl_ms must be a positive number of milliseconds, got {target!r}.")
        seats, budget = self.max_num_seqs, self.max_num_batched_tokens
        if seats is not None and budget is not None and budget < seats:
            raise ConfigError(
                f"max_num_batched_tokens ({budget}) must be at least max_num_seqs ({seats}): "
                "every running request takes at least one token of a step."
            )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain values, ready for JSON; `EngineConfig(**d)` reads them back."""
        return asdict(self)


EngineArgs = AsyncEngineArgs = EngineConfig
"""vLLM's names for it."""

_INT_RANGES: dict[str, tuple[int, int]] = {
    "max_model_len": (1, 2**31 - 1),
    "max_num_seqs": (1, 65_536),
    "max_num_batched_tokens": (1, 1 << 20),
    "long_prefill_token_threshold": (0, 1 << 20),
    "kv_cache_memory_bytes": (1, 1 << 50),
    "num_gpu_blocks_override": (1, MAX_CACHE_BLOCKS),
    "seed": (-(2**63), 2**63 - 1),
    "max_logprobs": (-1, 2**31 - 1),
    "num_threads": (1, 1_024),
}

_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_COUNT = re.compile(r"(-?)(\d{1,18})(?:\.(\d{1,9}))?([kmgKMG]?)")


def parse_count(name: str, value: object) -> int | None:
    """Read a whole number that may be written with a suffix: lower case decimal (32k), upper case binary (32K).

    Raises: `ConfigError` naming the option.
    """
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    match = _COUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match:
        sign, whole, decimals, suffix = match.groups(default="")
        scaled, rest = divmod(int(whole + decimals) * _SUFFIXES[suffix], int("1" + "0" * len(decimals)))
        if rest == 0:
            return -scaled if sign else scaled
    raise ConfigError(f'{name} must be a whole number, perhaps with a suffix as in "32k" or "2G", got {value!r}.')


def _of_type(name: str, hint: Any, value: Any) -> Any:
    """Return the value of an option if it has the type that its field declares; a path becomes text.

    Numbers written with a suffix, and ranges, are not looked at. Raises: `ConfigError` naming the option.
    """
    kinds = get_args(hint) or (hint,)
    if value is None and type(None) in kinds:
        return None
    choices = [kind for kind in kinds if get_origin(kind) is Literal]
    if choices:
        return _of_type(name, choices[0], value)
    if get_origin(hint) is Literal:
        if value not in kinds:
            hint = '; for 8 bits use "int8"' if name == "kv_cache_dtype" and str(value).startswith("fp8") else ""
            raise ConfigError(f"{name} must be one of {', '.join(map(repr, kinds))}, got {value!r}{hint}.")
    elif bool in kinds:
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be True or False, got {value!r}.")
    elif str in kinds:
        if int in kinds:
            return value
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{name} must be a non-empty string, got {value!r}.")
    elif int in kinds:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{name} must be an integer, got {value!r}.")
    elif any(get_origin(kind) is Mapping for kind in kinds) and not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a dict, got {value!r}.")
    return value


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What the scheduler needs. Resolved: no `None` left that means "auto"."""

    max_num_seqs: int
    """Requests running at once: the number of seats."""
    max_num_batched_tokens: int
    """Token budget of one step."""
    max_model_len: int
    """Limit of prompt plus output, in tokens."""
    long_prefill_token_threshold: int
    """Beside other requests no prefill takes more tokens of a step than this; 0 switches the rule off."""
    target_itl_ms: float | None
    """Beside streamed requests prompts are cut so that steps take about this long; None: 2.2 times as long as without
    prompts, unless long_prefill_token_threshold is 0."""
    enable_chunked_prefill: bool
    """If false, a prompt runs in one step or waits for one; max_num_batched_tokens is then at least max_model_len."""
    policy: Literal["fcfs", "priority"]
    enable_prefix_caching: bool
