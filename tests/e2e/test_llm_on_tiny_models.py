"""The whole engine, from `LLM` to the kernels, on checkpoints that take milliseconds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tiny_models import TINY_DIR, read_reference

from octavo import LLM, RequestOutputKind, SamplingParams

CHECKPOINTS = ("llama", "llama3_rope", "llama_yarn", "llama_linear", "llama_dynamic", "qwen3", "gemma3_text")
FLOAT = {"activation_quantization": False, "kv_cache_dtype": "float32", "num_threads": 2}


def make_llm(name: str, **options: Any) -> LLM:
    return LLM(TINY_DIR / name, tokenizer=TINY_DIR / "llama", **{**FLOAT, **options})


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with make_llm("llama", num_gpu_blocks_override=16) as engine:
        yield engine


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_greedy_ids_are_those_of_transformers(name: str) -> None:
    reference = read_reference(name)
    params = SamplingParams(temperature=0, max_tokens=len(reference.greedy_ids), ignore_eos=True)
    with make_llm(name) as engine:
        (output,) = engine.generate(reference.prompt_ids, params, use_tqdm=False)
    assert output.outputs[0].token_ids == reference.greedy_ids


def test_bad_prompts_among_many_leave_the_others_answers_as_they_are(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=8, ignore_eos=True) for _ in range(64)]
    prompts: list[Any] = [f"number {index} of many" for index in range(64)]
    alone = [llm.generate(prompt, params[0], use_tqdm=False)[0].outputs[0].token_ids for prompt in prompts]
    prompts[1], prompts[20], prompts[33] = "", [7] * 512, [2048]
    params[47] = SamplingParams(temperature=0, max_tokens=400)
    params[60] = SamplingParams(temperature=0, stop_token_ids=[2048])
    outputs = llm.generate(prompts, params, use_tqdm=False, on_error="return")
    bad = [index for index, output in enumerate(outputs) if output.error is not None]
    assert bad == [1, 20, 33, 47, 60]
    good = set(range(64)) - set(bad)
    assert all(outputs[index].outputs[0].token_ids == alone[index] for index in good)


def test_a_stream_gives_what_generate_gives(llm: LLM) -> None:
    params = SamplingParams(seed=7, max_tokens=30, logprobs=2, output_kind=RequestOutputKind.DELTA)
    (whole,) = llm.generate("Once upon a time", params, use_tqdm=False)
    parts = [output.outputs[0] for output in llm.stream("Once upon a time", params)]
    assert "".join(part.text for part in parts) == whole.outputs[0].text
    assert [token_id for part in parts for token_id in part.token_ids] == whole.outputs[0].token_ids
    assert [entry for part in parts for entry in part.logprobs or ()] == whole.outputs[0].logprobs


def test_logprobs_name_the_most_probable_tokens_in_order(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=3, ignore_eos=True)
    (output,) = llm.generate("abc", params, use_tqdm=False)
    for token_id, entries in zip(output.outputs[0].token_ids, output.outputs[0].logprobs or [], strict=True):
        assert len(entries) == 3
        assert next(iter(entries)) == token_id
        assert [entry.rank for entry in entries.values()] == [1, 2, 3]
        values = [entry.logprob for entry in entries.values()]
        assert values == sorted(values, reverse=True)
        assert values[0] < 0


def test_the_cache_leaves_room_for_what_a_step_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.frontend.build.available_memory_bytes", lambda: 1 << 30)
    left = []
    for budget in (64, 4096):
        with make_llm("llama", gpu_memory_utilization=1.0, max_num_seqs=8, max_num_batched_tokens=budget) as engine:
            core = engine.llm_engine._core
            left.append((1 << 30) - core.scheduler.manager.pool.ledger_bytes)
            assert left[-1] == core.executor._program.peak_bytes  # type: ignore[attr-defined]
    assert 0 < left[0] < left[1]


def test_the_fingerprint_follows_what_is_changed_of_the_models_config() -> None:
    prints = set()
    for overrides in (None, {"rope_theta": 10_000.0}, {"rms_norm_eps": 1e-3}):
        with make_llm("llama", hf_overrides=overrides) as engine:
            prints.add(engine.llm_engine.numeric_fingerprint)
    assert len(prints) == 3


@pytest.mark.parametrize(("name", "differs"), [("llama", False), ("llama_yarn", False), ("llama_dynamic", True)])
def test_the_fingerprint_follows_the_longest_length_only_where_angles_do(name: str, differs: bool) -> None:
    prints = set()
    for length in (None, 100):
        with make_llm(name, max_model_len=length) as engine:
            prints.add(engine.llm_engine.numeric_fingerprint)
    assert (len(prints) == 2) == differs


def test_the_fingerprint_follows_what_logprobs_and_embeddings_are_made_of() -> None:
    prints = set()
    for options in ({}, {"logprobs_mode": "processed_logprobs"}, {"pooling_type": "mean"}):
        with make_llm("llama", **options) as engine:
            prints.add(engine.llm_engine.numeric_fingerprint)
    assert len(prints) == 3


def test_an_automatic_length_without_chunks_is_what_one_step_holds() -> None:
    with make_llm(
        "llama", max_model_len="auto", enable_chunked_prefill=False, max_num_batched_tokens=96, max_num_seqs=4
    ) as engine:
        assert engine.llm_engine.max_model_len == 96
        (output,) = engine.generate([list(range(1, 96))], SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
    assert output.outputs[0].finish_reason == "length"


def test_an_automatic_length_is_what_the_cache_holds() -> None:
    with make_llm("llama", num_gpu_blocks_override=4, max_model_len="auto") as engine:
        assert engine.llm_engine.max_model_len == 64
        params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
        (output,) = engine.generate([5, 6, 7], params, use_tqdm=False)
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (61, "length")


def test_chat_answers_and_names_its_prompt(llm: LLM) -> None:
    (output,) = llm.chat([{"role": "user", "content": "hi"}], SamplingParams(max_tokens=3), use_tqdm=False)
    assert output.prompt is not None
    assert output.prompt.endswith("<|im_start|>assistant\n")
    assert output.outputs[0].token_ids


FORK = """
import os, sys
from octavo import LLM, EngineDeadError, SamplingParams
params = SamplingParams(temperature=0, max_tokens=8)
llm = LLM(sys.argv[1])
before = llm.generate("hello", params, use_tqdm=False)[0].outputs[0].token_ids
pid = os.fork()
if pid == 0:
    try:
        llm.generate("hello", params, use_tqdm=False)
    except EngineDeadError:
        llm = LLM(sys.argv[1])
        sys.exit(0 if llm.generate("hello", params, use_tqdm=False)[0].outputs[0].token_ids == before else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert llm.generate("hello", params, use_tqdm=False)[0].outputs[0].token_ids == before
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_forked_child_makes_its_own_engine_and_both_end_quietly() -> None:
    command = [sys.executable, "-c", FORK, str(TINY_DIR / "llama")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
