"""A request's tokens and logprobs are the same bytes whatever its company, chunks, cache hits, blocks and threads."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import same_answer_runs as runs
from tiny_models import TINY_DIR

from octavo import LLM, SamplingParams
from octavo.native.isa import ISA_LEVELS, best_isa

SMOLLM2_VOCAB = 49_152
MODELS = [
    pytest.param("smollm2_path", SMOLLM2_VOCAB, "auto", id="smollm2"),
    pytest.param("smollm2_path", SMOLLM2_VOCAB, "int8", id="smollm2, int8 cache"),
    pytest.param("gemma_path", 262_144, "auto", id="gemma, windows", marks=pytest.mark.slow),
    pytest.param("gemma_path", 262_144, "int8", id="gemma, windows, int8 cache", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def workload() -> runs.Workload:
    return runs.make_workload(SMOLLM2_VOCAB)


@functools.cache
def answers_alone(path: Path, vocab_size: int, kv_cache_dtype: str) -> list[bytes]:
    return runs.alone(path, runs.make_workload(vocab_size, kv_cache_dtype=kv_cache_dtype))


@pytest.mark.parametrize(("model", "vocab_size", "kv_cache_dtype"), MODELS)
@pytest.mark.parametrize("way", runs.WAYS.values(), ids=runs.WAYS.keys())
def test_answers_are_those_of_each_request_alone(
    request: pytest.FixtureRequest, model: str, vocab_size: int, kv_cache_dtype: str, way
) -> None:
    path = request.getfixturevalue(model)
    workload = runs.make_workload(vocab_size, kv_cache_dtype=kv_cache_dtype)
    assert way(path, workload) == answers_alone(path, vocab_size, kv_cache_dtype)


def test_an_unseeded_request_is_repeated_with_the_seed_it_reports(smollm2_path: Path, workload: runs.Workload) -> None:
    params = SamplingParams(max_tokens=12, logprobs=1, ignore_eos=True)
    with LLM(smollm2_path, **runs.BASE) as llm:
        together = llm.generate(workload.prompts, params, use_tqdm=False)
        seeds = [output.metrics.seed for output in together]
        assert len(set(seeds)) == len(seeds)
        for prompt, seed, output in zip(workload.prompts, seeds, together, strict=True):
            again = SamplingParams(max_tokens=12, logprobs=1, ignore_eos=True, seed=seed)
            assert runs.exact(llm.generate([prompt], again, use_tqdm=False)[0]) == runs.exact(output)


def test_unseeded_requests_repeat_in_a_new_engine_with_the_same_seed(
    smollm2_path: Path, workload: runs.Workload
) -> None:
    params = SamplingParams(max_tokens=8, logprobs=1, ignore_eos=True)
    answers = []
    for seed in (5, 5, 6):
        with LLM(smollm2_path, seed=seed, **runs.BASE) as llm:
            outputs = llm.generate(workload.prompts[:4], params, use_tqdm=False)
            answers.append(list(map(runs.exact, outputs)))
    assert answers[0] == answers[1]
    assert answers[0] != answers[2]


@pytest.mark.parametrize("max_num_seqs", [8, 2], ids=["all seated", "late children"])
def test_completions_of_a_fork_are_those_of_single_requests(smollm2_path: Path, workload, max_num_seqs: int) -> None:
    prompt = workload.prompts[3]
    with LLM(smollm2_path, **{**runs.BASE, "max_num_seqs": max_num_seqs}) as llm:

        def generate(n: int, seed: int) -> list:
            params = SamplingParams(n=n, seed=seed, max_tokens=20, logprobs=1, ignore_eos=True)
            return llm.generate([prompt], params, use_tqdm=False)[0].outputs

        forked = generate(4, seed=40)
        assert [completion.index for completion in forked] == [0, 1, 2, 3]
        for index, completion in enumerate(forked):
            (single,) = generate(1, seed=40 + index)
            assert (completion.token_ids, completion.logprobs) == (single.token_ids, single.logprobs)


@pytest.mark.parametrize("isa", ISA_LEVELS)
@pytest.mark.parametrize(
    ("name", "kv_cache_dtype"),
    [
        ("llama", "auto"),
        ("gemma3_text", "auto"),
        ("gemma3_text", "int8"),
        ("gemma2", "auto"),
        ("smollm3", "auto"),
        ("olmo3", "int8"),
        ("glm4", "auto"),
        ("qwen3_moe", "auto"),
        ("qwen3_5_text", "auto"),
        ("qwen3_5_moe", "auto"),
    ],
)
def test_tiny_models_answer_alike_on_every_isa(name: str, kv_cache_dtype: str, isa: str) -> None:
    if ISA_LEVELS.index(isa) > ISA_LEVELS.index(best_isa()):
        pytest.skip(f"this CPU runs {best_isa()} at best")
    command = [sys.executable, runs.__file__, str(TINY_DIR / name), str(TINY_DIR / "llama"), kv_cache_dtype]
    done = subprocess.run(
        command, env={**os.environ, "OCTAVO_ISA": isa}, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    same = json.loads(done.stdout.splitlines()[-1])
    assert same == dict.fromkeys(runs.WAYS, True)
