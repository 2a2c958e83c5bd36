"""One workload, and the ways to run it that must all give the same bytes.

As a program, `python same_answer_runs.py MODEL TOKENIZER CACHE_DTYPE` runs the workload in every way and prints each$
name, and whether its answers were those of the requests run alone; `OCTAVO_ISA` selects the kernels.
"""

from __future__ import annotations

import json
import random
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from octavo import LLM, RequestOutput, SamplingParams

BASE: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 8, "num_threads": 1, "enable_prefix_caching": False}
"""The reference: one request at a time, no cache to hit."""


@dataclass(frozen=True)
class Workload:
    """Prompts as token ids, how each is sampled, and how keys and values are stored."""

    prompts: list[list[int]]
    params: list[SamplingParams]
    kv_cache_dtype: str = "auto"
    tokenizer: str | None = None
    """Of a model that has none."""

    def load(self, model: str | Path, **options: Any) -> LLM:
        """Return an engine with the reference's options, but for these."""
        return LLM(model, **{**BASE, "kv_cache_dtype": self.kv_cache_dtype, "tokenizer": self.tokenizer, **options})

    def generate(self, llm: LLM, order: Sequence[int] | None = None) -> list[RequestOutput]:
        """Run all prompts as one batch, in this order; return the outputs in the workload's order."""
        order = range(len(self.prompts)) if order is None else order
        prompts, params = [self.prompts[i] for i in order], [self.params[i] for i in order]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        by_index = dict(zip(order, outputs, strict=True))
        return [by_index[index] for index in range(len(self.prompts))]


def make_workload(vocab_size: int, seed: int = 0, kv_cache_dtype: str = "auto") -> Workload:
    """Return eight prompts of 3 to 90 tokens, of which some begin alike, sampled in as many ways."""
    rng = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(vocab_size) for _ in range(count)]

    stem = tokens(64)
    lengths = [(0, 3), (0, 17), (64, 1), (64, 26), (40, 20), (0, 33), (0, 70), (64, 16)]
    prompts = [stem[:shared] + tokens(own) for shared, own in lengths]
    sampled = {"temperature": 0.8, "seed": 11}
    ways: list[dict[str, Any]] = [
        {"temperature": 0, "logprobs": 5},
        {**sampled, "logprobs": 2},
        {**sampled, "top_p": 0.9, "logprobs": 0},
        {**sampled, "top_k": 20, "min_p": 0.02, "logprobs": 3},
        {"temperature": 0, "repetition_penalty": 1.3, "logprobs": 1},
        {**sampled, "frequency_penalty": 0.5, "presence_penalty": 0.3, "logprobs": 1},
        {"temperature": 0, "min_tokens": 12, "logprobs": 1, "prompt_logprobs": 2},
        {**sampled, "logit_bias": {5: 3.0}, "allowed_token_ids": list(range(0, vocab_size, 3)), "logprobs": 1},
    ]
    return Workload(prompts, [SamplingParams(max_tokens=40, ignore_eos=True, **way) for way in ways], kv_cache_dtype)


def exact(output: RequestOutput) -> bytes:
    """Return everything that is promised of an output: token ids, and logprobs to the last bit."""
    packed = [_pack(position) for position in output.prompt_logprobs or [] if position is not None]
    for completion in output.outputs:
        packed.append(struct.pack(f"<{len(completion.token_ids)}i", *completion.token_ids))
        packed += [_pack(position) for position in completion.logprobs or []]
    return b"|".join(packed)


def _pack(position: dict[int, Any]) -> bytes:
    return b"".join(struct.pack("<idi", token_id, entry.logprob, entry.rank) for token_id, entry in position.items())


def alone(model: str | Path, workload: Workload) -> list[bytes]:
    """Return the answers that all others are compared with."""
    with workload.load(model) as llm:
        return [
            exact(llm.generate([prompt], own, use_tqdm=False)[0])
            for prompt, own in zip(workload.prompts, workload.params, strict=True)
        ]


def together(**options: Any) -> Callable[[str | Path, Workload], list[bytes]]:
    """Return a way to run: all requests at once, with these options."""

    def run(model: str | Path, workload: Workload) -> list[bytes]:
        with workload.load(model, **options) as llm:
            return list(map(exact, workload.generate(llm)))

    return run


def shuffled(model: str | Path, workload: Workload) -> list[bytes]:
    """In another order, three at a time."""
    order = list(range(len(workload.prompts)))
    random.Random(4).shuffle(order)
    with workload.load(model, max_num_seqs=3) as llm:
        return list(map(exact, workload.generate(llm, order)))


def preempted(model: str | Path, workload: Workload) -> list[bytes]:
    """With so few blocks that requests lose theirs and are recomputed."""
    with workload.load(model, num_gpu_blocks_override=11) as llm:
        outputs = workload.generate(llm)
    num_preemptions = sum(output.metrics.num_preemptions for output in outputs)
    assert num_preemptions >= 2, f"{num_preemptions} preemptions: the pool is too large to test anything"
    return list(map(exact, outputs))


def cached(model: str | Path, workload: Workload) -> list[bytes]:
    """With prompts found in the prefix cache."""
    with workload.load(model, enable_prefix_caching=True) as llm:
        workload.generate(llm)
        outputs = workload.generate(llm)
    for output in outputs:
        if len(output.prompt_token_ids) > 16 and output.prompt_logprobs is None:
            assert output.num_cached_tokens > 0, f"no hit for a prompt of {len(output.prompt_token_ids)} tokens"
    return list(map(exact, outputs))


WAYS: dict[str, Callable[[str | Path, Workload], list[bytes]]] = {
    "together": together(),
    "shuffled": shuffled,
    **{f"chunks of {size}": together(long_prefill_token_threshold=size) for size in (1, 5, 16, 64)},
    "steps of 11 tokens": together(max_num_batched_tokens=11),
    "preempted": preempted,
    "cached": cached,
    "two threads": together(num_threads=2),
    **{f"blocks of {size}": together(block_size=size) for size in (32, 64, 128)},
}


def main() -> None:
    """Run the workload in every way on the tiny checkpoint given; print a JSON object."""
    model, tokenizer, kv_cache_dtype = sys.argv[1:]
    config = json.loads(Path(model, "config.json").read_text())
    workload = make_workload(config["vocab_size"], kv_cache_dtype=kv_cache_dtype)
    workload = replace(workload, tokenizer=tokenizer)
    expected = alone(model, workload)
    print(json.dumps({name: way(model, workload) == expected for name, way in WAYS.items()}))


if __name__ == "__main__":
    main()
