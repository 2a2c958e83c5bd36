"""What goes wrong inside one request ends that request; the others answer as if it had never been there."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import same_answer_runs as runs

from octavo import LLM, SamplingParams
from octavo.runner.model_runner import ModelRunner
from octavo.sampling.token_edits import TokenEdits

VOCAB = 49_152
MARK = 11
"""A token id by which a request is known in the data plane."""


@pytest.fixture(scope="module")
def llm(smollm2_path: Path):
    with LLM(smollm2_path, max_model_len=512, num_gpu_blocks_override=24) as llm:
        yield llm


def make_prompts(count: int, length: int = 12) -> list[list[int]]:
    return [[100 + 37 * index + position for position in range(length)] for index in range(count)]


def generate(llm: LLM, prompts, params, **options) -> list:
    return llm.generate(prompts, params, use_tqdm=False, **options)


def test_five_bad_prompts_of_64_leave_59_right_answers(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=1, ignore_eos=True)
    good = make_prompts(64)
    expected = [runs.exact(output) for output in generate(llm, good, params)]
    bad = {
        3: ([], params),
        17: ([5] * 600, params),
        20: ([5, VOCAB], params),
        41: ([5] * 400, SamplingParams(temperature=0, max_tokens=100)),
        63: (good[63], SamplingParams(max_tokens=6, stop_token_ids=[VOCAB])),
    }
    prompts, own_params = list(good), [params] * 64
    for index, (prompt, own) in bad.items():
        prompts[index], own_params[index] = prompt, own
    outputs = generate(llm, prompts, own_params, on_error="return")
    for index, output in enumerate(outputs):
        if index in bad:
            assert output.error is not None
            assert output.error.code == "request_error"
            assert [completion.finish_reason for completion in output.outputs] == ["error"]
            assert output.outputs[0].text == ""
        else:
            assert output.error is None
            assert runs.exact(output) == expected[index]


def test_an_exception_in_one_requests_sampling_ends_it_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=0.9, seed=3, max_tokens=10, min_tokens=1, logprobs=1, ignore_eos=True)
    prompts = make_prompts(6)
    expected = [runs.exact(output) for output in generate(llm, prompts, params)]
    edits_at = TokenEdits.at

    def failing_at(self, token_ids, position):
        if token_ids[0] == prompts[2][0] and position == len(prompts[2]) + 4:
            raise ZeroDivisionError("injected")
        return edits_at(self, token_ids, position)

    monkeypatch.setattr(TokenEdits, "at", failing_at)
    outputs = generate(llm, prompts, params)
    check_only_guilty(outputs, expected, guilty=2, message="injected")
    assert len(outputs[2].outputs[0].token_ids) == 4


def test_an_exception_in_the_executor_ends_only_the_request_that_causes_it(llm: LLM, monkeypatch) -> None:
    params = SamplingParams(temperature=0, max_tokens=10, logprobs=1, ignore_eos=True)
    prompts = make_prompts(6)
    prompts[4][3] = MARK
    expected = [runs.exact(output) for output in generate(llm, prompts, params)]
    execute = ModelRunner.execute

    def failing_execute(self, plan):
        execute(self, plan)
        if any(MARK in self._inputs.token_ids[seat] for seat in plan.seats):
            raise RuntimeError("injected")

    monkeypatch.setattr(ModelRunner, "execute", failing_execute)
    check_only_guilty(generate(llm, prompts, params), expected, guilty=4, message="injected")


def test_the_engine_serves_on_after_failures(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=1, ignore_eos=True)
    expected = [runs.exact(output) for output in generate(llm, make_prompts(3), params)]
    with monkeypatch.context() as patch:
        patch.setattr(ModelRunner, "execute", None)
        outputs = generate(llm, make_prompts(3), params)
    assert [output.outputs[0].finish_reason for output in outputs] == ["error"] * 3
    assert [runs.exact(output) for output in generate(llm, make_prompts(3), params)] == expected


def test_an_interrupt_ends_the_call_and_leaves_a_usable_engine(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=0, max_tokens=20, logprobs=1, ignore_eos=True)
    expected = [runs.exact(output) for output in generate(llm, make_prompts(4), params)]
    execute = ModelRunner.execute
    steps = []

    def interrupting_execute(self, plan):
        execute(self, plan)
        steps.append(plan.step_id)
        if len(steps) == 5:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(ModelRunner, "execute", interrupting_execute)
        with pytest.raises(KeyboardInterrupt):
            generate(llm, make_prompts(4), params)
    assert not llm.llm_engine.has_unfinished_requests()
    assert [runs.exact(output) for output in generate(llm, make_prompts(4), params)] == expected


def check_only_guilty(outputs: list, expected: list[bytes], guilty: int, message: str) -> None:
    for index, output in enumerate(outputs):
        if index == guilty:
            assert output.outputs[0].finish_reason == "error"
            assert message in output.error.message
        else:
            assert runs.exact(output) == expected[index]
            assert output.error is None
