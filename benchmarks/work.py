"""The work that engines are compared on: the same token ids for all of them, made from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo.bench.workload import Workload
from octavo.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Scale:
    """How much of it."""

    prefill_len: int = 512
    input_len: int = 128
    output_len: int = 128
    batch_sizes: tuple[int, ...] = (1, 8, 32)
    job_size: int = 64
    mixed_size: int = 200
    mixed_input_len: int = 200
    mixed_output_len: int = 100
    mixed_sigma: float = 0.7
    context_lens: tuple[int, ...] = (128, 256, 512, 1024, 2048)
    linearity_batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 48, 64)
    long_prompt_len: int = 4000
    stall_output_len: int = 300
    step_seconds: float = 1.0
    repeats: int = 3


FULL = Scale()
TINY = Scale(
    prefill_len=32,
    input_len=8,
    output_len=4,
    batch_sizes=(1, 2),
    job_size=4,
    mixed_size=4,
    mixed_input_len=8,
    mixed_output_len=4,
    context_lens=(16, 32),
    linearity_batches=(1, 2),
    long_prompt_len=64,
    stall_output_len=24,
    step_seconds=0.01,
    repeats=1,
)


def make_work(names: set[str], scale: Scale, tokenizer: Tokenizer, max_model_len: int) -> list[dict[str, Any]]:
    """Return the entries of a job for `peers/driver.py`, those of `names` only."""

    def prompts(count: int, length: int, seed: int) -> list[Any]:
        workload = Workload(input_len=length, output_len=1, num_prompts=count, seed=seed)
        return [item.prompt for item in workload.items(tokenizer, max_model_len)]

    work: list[dict[str, Any]] = []
    if "prefill" in names:
        ids = prompts(scale.repeats, scale.prefill_len, 1)
        work.append({"name": f"prefill {scale.prefill_len}", "kind": "prefill", "prompts": ids})
    if "decode" in names:
        for size in scale.batch_sizes:
            entry = {"kind": "decode", "prompts": prompts(2 * size, scale.input_len, 2), "output_len": scale.output_len}
            work.append({"name": f"decode B={size}", **entry})
    if "job" in names:
        name = f"job {scale.job_size} x ({scale.input_len} + {scale.output_len})"
        ids = prompts(scale.job_size, scale.input_len, 3)
        work.append({"name": name, "kind": "job", "prompts": ids, "output_lens": [scale.output_len] * scale.job_size})
    if "mixed" in names:
        mixed = Workload(
            input_len=scale.mixed_input_len,
            output_len=scale.mixed_output_len,
            num_prompts=scale.mixed_size,
            length_sigma=scale.mixed_sigma,
            seed=4,
        )
        items = mixed.items(tokenizer, max_model_len)
        name = f"mixed {scale.mixed_size}, log-normal {scale.mixed_input_len} / {scale.mixed_output_len}"
        lens = {"prompts": [item.prompt for item in items], "output_lens": [item.output_len for item in items]}
        work.append({"name": name, "kind": "job", **lens})
    return work
