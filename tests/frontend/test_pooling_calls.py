"""`LLM.embed` and `score` over a fake engine, whose hidden state of a token is (id, position, 1, 0)."""

from __future__ import annotations

from typing import Any

import pytest
from face_fakes import make_llm

from octavo import PoolingParams, RequestError, SamplingParams
from octavo.frontend.embedding import EmbeddingConfig
from octavo.frontend.input_processor import InputProcessor

RAW = PoolingParams(use_activation=False)


def test_the_last_token_or_the_mean_of_all_is_pooled() -> None:
    for pooling_type, expected in (("last", [98, 1, 1, 0]), ("mean", [97.5, 0.5, 1, 0])):
        with make_llm(pooling_type=pooling_type)[0] as llm:
            (output,) = llm.embed("ab", pooling_params=RAW, use_tqdm=False)
            assert (output.outputs.embedding, output.outputs.hidden_size) == (expected, 4)
            assert (output.prompt_token_ids, output.finished, output.error) == ([97, 98], True, None)


def test_each_prompt_may_have_its_own_parameters() -> None:
    with make_llm()[0] as llm:
        params = [RAW, PoolingParams(dimensions=1, use_activation=False)]
        outputs = llm.embed(["a", "b"], pooling_params=params, use_tqdm=False)
        assert [output.outputs.embedding for output in outputs] == [[97, 0, 1, 0], [98]]
        assert [output.request_id for output in outputs] == ["0", "1"]
        with pytest.raises(RequestError, match="must be the same"):
            llm.embed(["a"], pooling_params=params, use_tqdm=False)


@pytest.mark.parametrize("params", [SamplingParams(), {"dimensions": 2}, [SamplingParams()]], ids=repr)
def test_other_parameters_are_no_pooling_params(params: Any) -> None:
    with make_llm()[0] as llm, pytest.raises(TypeError, match="must be PoolingParams"):
        llm.embed(["a"], pooling_params=params, use_tqdm=False)


def test_pooling_params_are_no_sampling_params() -> None:
    with make_llm()[0] as llm, pytest.raises(TypeError, match="must be SamplingParams"):
        llm.generate(["a"], PoolingParams(), use_tqdm=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        (["a", ""], None, "prompt 1: prompt cannot be empty"),
        (["a", "x" * 513], None, "prompt 1: prompt has 513 tokens"),
        ([[300]], None, "out of vocabulary"),
        (["a"], PoolingParams(dimensions=5), "dimensions is 5, but the model's embeddings have 4"),
    ],
    ids=["empty", "long", "vocabulary", "dimensions"],
)
def test_a_prompt_that_cannot_be_embedded_is_named_before_anything_runs(
    prompts: Any, params: PoolingParams | None, message: str
) -> None:
    llm, executor = make_llm()
    with llm:
        with pytest.raises(RequestError, match=message):
            llm.embed(prompts, pooling_params=params, use_tqdm=False)
        assert not executor._seats


def test_a_whole_context_is_embedded_and_generates_nothing() -> None:
    with make_llm()[0] as llm:
        (output,) = llm.embed([[5] * 512], pooling_params=RAW, use_tqdm=False)
        assert output.outputs.embedding == [5, 511, 1, 0]
        metrics = {metric.name: metric.value for metric in llm.get_metrics()}
    assert metrics["vllm:generation_tokens"] == 0
    assert metrics["vllm:prompt_tokens"] == 512


def test_a_model_without_embeddings_still_generates(monkeypatch: pytest.MonkeyPatch) -> None:
    with make_llm()[0] as llm:
        inputs: InputProcessor = llm.llm_engine._inputs
        monkeypatch.setattr(inputs, "_embedding", EmbeddingConfig(problem="its files ask for pooling by cls"))
        with pytest.raises(RequestError, match="no embeddings: its files ask for pooling by cls; give the engine"):
            llm.embed("a", use_tqdm=False)
        assert llm.generate("a", use_tqdm=False)[0].outputs[0].text == "a"


def test_a_request_that_breaks_its_step_ends_with_an_error() -> None:
    llm, executor = make_llm()
    executor.broken_request = "1#"
    with llm:
        outputs = llm.embed(["a", "b", "c"], pooling_params=RAW, use_tqdm=False)
    assert [output.error is not None for output in outputs] == [False, True, False]
    assert outputs[2].outputs.embedding == [99, 0, 1, 0]


@pytest.mark.parametrize(("first", "second"), [(["a", "b"], ["c"]), (["a"], []), (["a", "b"], ["c", "d", "e"])])
def test_lists_that_make_no_pairs_are_refused(first: list[str], second: list[str]) -> None:
    with make_llm()[0] as llm, pytest.raises(RequestError, match="data_1 must be"):
        llm.score(first, second, use_tqdm=False)


def test_one_text_is_compared_with_many() -> None:
    with make_llm()[0] as llm:
        scores = llm.score("a", ["a", "b"], use_tqdm=False)
        assert [output.request_id for output in scores] == ["0", "1"]
        assert scores[0].outputs.score == pytest.approx(1)
        assert scores[1].outputs.score < 1
        assert scores[1].prompt_token_ids == [97, 98]
        with pytest.raises(RequestError, match="chat_template"):
            llm.score("a", "b", chat_template="x")  # type: ignore[arg-type]


def test_urgent_embeddings_go_first() -> None:
    with make_llm(policy="priority", max_num_seqs=1)[0] as llm:
        engine = llm.llm_engine
        inputs = engine.prepare(["a"] * 3, [RAW] * 3)
        engine.add_inputs([(str(i), source, -i) for i, source in enumerate(inputs)])
        ended = []
        while engine.has_unfinished_requests():
            ended += [output.request_id for output in engine.step() if output.finished]
    assert ended == ["2", "1", "0"]
