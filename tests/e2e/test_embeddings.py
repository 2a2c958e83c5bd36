"""Embeddings: transformers' numbers, the same bytes whatever the company, and everything that requests share."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from cache_integrity import check_engine
from tiny_models import TINY_DIR, read_hidden_states, read_reference

from octavo import LLM, AsyncLLM, EmbeddingRequestOutput, PoolingParams, SamplingParams

TOLERANCE = 1e-4
"""Of the hidden states' standard deviation: float32 sums in another order."""
FLOAT = {"activation_quantization": False, "kv_cache_dtype": "float32", "num_threads": 2}
RAW = PoolingParams(use_activation=False)
FAMILIES = ["llama", "llama3_rope", "gemma", "gemma2", "gemma3_text", "granite", "olmo3", "phi3", "qwen2", "qwen3_moe"]
HYBRID = "qwen3_5_text"
BASE: dict[str, Any] = {"max_num_seqs": 8, "num_threads": 1, "enable_prefix_caching": False, "max_model_len": 256}


def make_llm(name: str, **options: Any) -> LLM:
    return LLM(TINY_DIR / name, tokenizer=TINY_DIR / "llama", **options)


def vectors(outputs: Sequence[EmbeddingRequestOutput]) -> list[list[float]]:
    return [output.outputs.embedding for output in outputs]


def embed(llm: LLM, prompts: Any, params: PoolingParams | None = None) -> list[list[float]]:
    return vectors(llm.embed(prompts, pooling_params=params, use_tqdm=False))


def expected_vector(name: str, pooling_type: str) -> np.ndarray:
    states = read_hidden_states(name).astype(np.float64)
    return states[-1] if pooling_type == "last" else states.mean(axis=0)


def assert_close(actual: Sequence[float], name: str, pooling_type: str) -> None:
    error = np.abs(np.array(actual) - expected_vector(name, pooling_type)).max()
    assert error < TOLERANCE * read_hidden_states(name).std()


@pytest.mark.parametrize("pooling_type", ["last", "mean"])
@pytest.mark.parametrize("name", [*FAMILIES, HYBRID])
def test_embeddings_are_the_hidden_states_of_transformers(name: str, pooling_type: Any) -> None:
    with make_llm(name, pooling_type=pooling_type, **FLOAT) as llm:
        (raw,) = embed(llm, [read_reference(name).input_ids], RAW)
        (unit,) = embed(llm, [read_reference(name).input_ids])
    assert_close(raw, name, pooling_type)
    assert np.abs(np.array(unit) - np.array(raw) / np.linalg.norm(raw)).max() < 1e-6


def make_prompts() -> list[list[int]]:
    """Prompts of 1 to 150 tokens; some begin alike, one is there twice."""
    rng = np.random.default_rng(3)
    stem = rng.integers(3, 390, 64).tolist()
    lengths = [(0, 1), (0, 17), (64, 1), (64, 26), (40, 20), (0, 33), (0, 150), (64, 26), (64, 0)]
    return [stem[:shared] + rng.integers(3, 390, own).tolist() for shared, own in lengths]


WAYS: dict[str, dict[str, Any]] = {
    "together": {},
    **{f"chunks of {size}": {"long_prefill_token_threshold": size} for size in (1, 5, 16, 64)},
    "steps of 11 tokens": {"max_num_batched_tokens": 11},
    "two threads": {"num_threads": 2},
    **{f"blocks of {size}": {"block_size": size} for size in (32, 64)},
    "cached": {"enable_prefix_caching": True},
}


@pytest.mark.parametrize("pooling_type", ["last", "mean"])
@pytest.mark.parametrize("name", ["llama", "gemma3_text", HYBRID])
def test_an_embedding_is_the_same_bytes_whatever_its_company(name: str, pooling_type: Any) -> None:
    prompts = make_prompts()
    with make_llm(name, **BASE, pooling_type=pooling_type) as llm:
        alone = [embed(llm, [prompt])[0] for prompt in prompts]
    for way, options in WAYS.items():
        with make_llm(name, **{**BASE, **options}, pooling_type=pooling_type) as llm:
            assert embed(llm, prompts) == alone, way
            order = [5, 0, 8, 2, 7, 1, 6, 4, 3]
            assert embed(llm, [prompts[i] for i in order]) == [alone[i] for i in order], way


@pytest.mark.parametrize("pooling_type", ["last", "mean"])
def test_a_preempted_embedding_starts_over_and_is_the_same(pooling_type: Any) -> None:
    prompts = make_prompts()
    generated = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    with make_llm("llama", **BASE, pooling_type=pooling_type) as llm:
        alone = embed(llm, prompts)
    options = {**BASE, "long_prefill_token_threshold": 1, "num_gpu_blocks_override": 14, "pooling_type": pooling_type}
    with make_llm("llama", **{**options, "scheduling_policy": "priority"}) as llm:
        engine = llm.llm_engine
        inputs = engine.prepare(prompts, [PoolingParams()] * len(prompts))
        others = engine.prepare([[7] * 4, [8] * 4, [9] * 4], [generated] * 3)
        engine.add_inputs([(f"e{i}", source, 1) for i, source in enumerate(inputs)])
        engine.add_inputs([(f"g{i}", source, 0) for i, source in enumerate(others)])
        results = {output.request_id: output for output in run(llm) if output.finished}
    assert [results[f"e{i}"].embedding for i in range(len(prompts))] == alone
    assert sum(results[f"e{i}"].metrics.num_preemptions for i in range(len(prompts))) >= 1


def run(llm: LLM) -> Iterator[Any]:
    while llm.llm_engine.has_unfinished_requests():
        yield from llm.llm_engine.step()


def test_a_mean_never_reads_the_prefix_cache_and_the_last_token_may() -> None:
    prompt = make_prompts()[6]
    for pooling_type, hit in (("last", 144), ("mean", 0)):
        with make_llm("llama", pooling_type=pooling_type) as llm:
            first, second = (llm.embed([prompt], use_tqdm=False)[0] for _ in range(2))
            assert (first.num_cached_tokens, second.num_cached_tokens) == (0, hit)
            assert first.outputs == second.outputs
            unread = PoolingParams(skip_reading_prefix_cache=True)
            (third,) = llm.embed([prompt], pooling_params=unread, use_tqdm=False)
            assert (third.num_cached_tokens, third.outputs) == (0, first.outputs)
            # What it has computed serves those that generate.
            (output,) = llm.generate([prompt], SamplingParams(max_tokens=1), use_tqdm=False)
            assert output.num_cached_tokens == 144


def test_dimensions_are_cut_before_the_length_becomes_one() -> None:
    with make_llm("llama") as llm:
        (raw,), (cut,) = embed(llm, "hello", RAW), embed(llm, "hello", PoolingParams(dimensions=5))
        (both,) = embed(llm, "hello", PoolingParams(dimensions=5, use_activation=False))
        (whole,) = embed(llm, "hello", PoolingParams(dimensions=64))
        assert whole == embed(llm, "hello")[0]
    assert both == raw[:5]
    assert cut == pytest.approx([value / math.dist(both, [0] * 5) for value in both], rel=1e-6)


def test_scores_are_cosines_of_embeddings() -> None:
    texts = ["The king", "the city", "a long time ago"]
    with make_llm("llama") as llm:
        units = [np.array(vector) for vector in embed(llm, texts)]
        scores = [output.outputs.score for output in llm.score(texts[0], texts, use_tqdm=False)]
        pairs = llm.score(texts[:2], texts[1:], use_tqdm=False)
    assert scores == pytest.approx([float(units[0] @ unit) for unit in units], abs=1e-6)
    assert [output.outputs.score for output in pairs] == pytest.approx(
        [float(units[0] @ units[1]), float(units[1] @ units[2])], abs=1e-6
    )
    assert [output.request_id for output in pairs] == ["0", "1"]


def test_sixty_four_mixed_requests_leave_nothing_behind() -> None:
    embedding = {"pooling_params": PoolingParams(), "use_tqdm": False}
    sampled = SamplingParams(seed=5, max_tokens=20, ignore_eos=True, logprobs=1)
    prompts = [[3 + i % 7] * (1 + i * 3 % 70) for i in range(64)]
    with make_llm("llama", num_gpu_blocks_override=40, max_num_seqs=16, pooling_type="mean") as llm:
        expected_vectors = vectors(llm.embed(prompts[::2], **embedding))
        expected_texts = [output.outputs for output in llm.generate(prompts[1::2], sampled, use_tqdm=False)]
        engine, core = llm.llm_engine, llm.llm_engine._core
        params = [PoolingParams() if i % 2 == 0 else sampled for i in range(64)]
        engine.add_inputs([(str(i), source, i % 3) for i, source in enumerate(engine.prepare(prompts, params))])
        aborted = {"4", "9", "40", "63"}
        engine.abort_request(aborted)
        results = {output.request_id: output for output in run(llm) if output.finished}
        assert results.keys() == {str(i) for i in range(64)} - aborted
        for i in range(64):
            if str(i) not in aborted and i % 2 == 0:
                assert results[str(i)].embedding == expected_vectors[i // 2]
            elif str(i) not in aborted:
                assert results[str(i)].outputs == expected_texts[i // 2]
        assert engine._thread.ask(lambda: check_engine(core)) is None
        assert core.scheduler.manager.pool.used_bytes == 0
        assert not core.executor._runner._inputs.hidden_sums._pooled.keys() - set(range(16))


def test_an_embedding_that_is_not_a_number_is_an_error_of_its_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with make_llm("llama", pooling_type="mean") as llm:
        (good,) = embed(llm, [[5, 6]])
        program = llm.llm_engine._core.executor._program
        pool = program.pool

        def spoiled(rows: Any, targets: Any, sums: Any) -> float:
            seconds: float = pool(rows, targets, sums)
            sums[targets[0]] = np.nan
            return seconds

        monkeypatch.setattr(program, "pool", spoiled)
        bad, other = llm.embed([[7, 8], [5, 6]], use_tqdm=False)
    assert bad.error is not None
    assert bad.error.message == "the model's hidden states are not finite numbers"
    assert bad.outputs.embedding == []
    assert (other.error, other.outputs.embedding) == (None, good)


def test_bad_prompts_among_many_get_errors_and_the_others_embeddings() -> None:
    with make_llm("llama", max_model_len=64) as llm:
        outputs = llm.embed(["a", "", [5] * 65, [5] * 64, [2048]], use_tqdm=False, on_error="return")
        assert [output.error is not None for output in outputs] == [False, True, True, False, True]
        assert "maximum context length is 64" in outputs[2].error.message
        assert outputs[0].outputs.embedding == embed(llm, "a")[0]


def test_asyncio_programs_embed_too() -> None:
    async def encode(llm: AsyncLLM) -> list[list[float]]:
        outputs = [output async for output in llm.encode("hello", PoolingParams(), "id")]
        assert [output.request_id for output in outputs] == ["id"]
        return vectors(outputs)

    with make_llm("llama") as llm:
        expected = embed(llm, "hello")
        assert asyncio.run(encode(AsyncLLM(llm.llm_engine))) == expected
