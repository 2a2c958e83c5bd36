from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from typing import Any

import pytest
from face_fakes import EOS, make_llm

from octavo import EngineDeadError, RequestError, RequestOutput, RequestOutputKind, SamplingParams

GREEDY = {"temperature": 0.0, "max_tokens": 100}


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def test_outputs_come_in_the_order_of_the_prompts() -> None:
    llm, _ = make_llm()
    prompts = ["x" * 90, "b", "hello", "a" * 50]
    outputs = llm.generate(prompts, SamplingParams(**GREEDY), use_tqdm=False)
    assert texts(outputs) == prompts
    assert [output.prompt for output in outputs] == prompts
    assert all(output.finished and output.outputs[0].finish_reason == "stop" for output in outputs)


@pytest.mark.parametrize(
    "prompt",
    ["hi", [104, 105], {"prompt": "hi"}, {"prompt_token_ids": [104, 105]}, {"prompt": "hi", "cache_salt": "tenant-1"}],
    ids=["text", "ids", "text-dict", "ids-dict", "salted"],
)
def test_every_form_of_a_prompt_gives_the_same_answer(prompt: Any) -> None:
    llm, _ = make_llm()
    for given in (prompt, [prompt]):
        (output,) = llm.generate(given, SamplingParams(**GREEDY), use_tqdm=False)
        assert output.outputs[0].text == "hi"
        assert output.prompt_token_ids == [104, 105]


def test_no_prompts_give_no_outputs() -> None:
    llm, _ = make_llm()
    assert llm.generate([], use_tqdm=False) == []


def test_without_params_the_models_defaults_are_used() -> None:
    llm, _ = make_llm()
    (output,) = llm.generate("x" * 60, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 40
    assert output.outputs[0].finish_reason == "length"


def test_each_prompt_may_have_its_own_params() -> None:
    llm, _ = make_llm()
    params = [SamplingParams(temperature=0, max_tokens=count) for count in (1, 3)]
    assert texts(llm.generate(["abcd", "abcd"], params, use_tqdm=False)) == ["a", "abc"]


def test_the_callers_params_are_not_changed() -> None:
    llm, _ = make_llm()
    params = SamplingParams(**GREEDY)
    before = params.clone()
    llm.generate("a", params, use_tqdm=False)
    assert params == before
    assert params.output_kind is RequestOutputKind.CUMULATIVE


@pytest.mark.parametrize(
    "arguments", [{"sampling_params": [SamplingParams()]}, {"priority": [1, 2, 3]}], ids=["params", "priority"]
)
def test_lists_of_another_length_are_refused(arguments: Any) -> None:
    llm, _ = make_llm()
    with pytest.raises(RequestError, match=r"lengths of prompts \(2\)"):
        llm.generate(["a", "b"], use_tqdm=False, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"priority": 1.5}, "priority must be an integer"),
        ({"priority": float("nan")}, "priority must be an integer"),
        ({"priority": "high"}, "priority must be an integer"),
        ({"priority": [None, 1]}, "priority must be an integer"),
        ({"tokenization_kwargs": 5}, "tokenization_kwargs must be a dict"),
        ({"tokenization_kwargs": {"padding": True}}, "add_special_tokens"),
        ({"tokenization_kwargs": {"add_special_tokens": "no"}}, "add_special_tokens must be True or False"),
        ({"on_error": "ignore"}, "on_error must be"),
    ],
    ids=lambda value: repr(value) if isinstance(value, dict) else "",
)
def test_an_argument_that_cannot_be_served_is_refused_and_the_engine_serves_on(arguments: Any, message: str) -> None:
    llm, _ = make_llm(policy="priority")
    for call in (llm.generate, llm.stream):
        with pytest.raises(RequestError, match=message):
            list(call(["a", "b"], SamplingParams(**GREEDY), **arguments))
    assert texts(llm.generate(["a", "b"], SamplingParams(**GREEDY), priority=[2, 1], use_tqdm=False)) == ["a", "b"]


@pytest.mark.parametrize("params", [5, "greedy", {"max_tokens": 1}, [SamplingParams(), 5]], ids=repr)
def test_params_of_another_type_are_a_type_error(params: Any) -> None:
    llm, _ = make_llm()
    with pytest.raises(TypeError, match="sampling_params must be SamplingParams"):
        llm.generate(["a", "b"], params, use_tqdm=False)


def make_bad_batch() -> tuple[list[Any], list[SamplingParams], set[int]]:
    """64 prompts of which five cannot be served, each for another reason."""
    prompts: list[Any] = [f"prompt number {index}" for index in range(64)]
    params = [SamplingParams(**GREEDY) for _ in prompts]
    prompts[3] = ""
    prompts[17] = "x" * 600
    prompts[30] = [5, 300]
    params[41] = SamplingParams(temperature=0, stop_token_ids=[300])
    params[63] = SamplingParams(temperature=0, max_tokens=400)
    return prompts, params, {3, 17, 30, 41, 63}


def test_bad_prompts_get_their_own_errors_and_the_others_their_answers() -> None:
    llm, _ = make_llm(num_blocks=20)
    prompts, params, bad = make_bad_batch()
    outputs = llm.generate(prompts, params, use_tqdm=False, on_error="return")
    for index, output in enumerate(outputs):
        assert output.finished
        if index in bad:
            assert output.error is not None
            assert output.error.code == "request_error"
            assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("", "error")
        else:
            assert output.error is None
            assert output.outputs[0].text == prompts[index]
    messages = {index: outputs[index].error.message for index in bad}  # type: ignore[union-attr]
    assert "empty" in messages[3]
    assert "600 tokens" in messages[17]
    assert "512" in messages[17]
    assert "out of vocabulary" in messages[30]
    assert "stop_token_ids" in messages[41]
    assert "KV cache" in messages[63]


def test_by_default_a_bad_prompt_stops_everything_before_it_runs() -> None:
    llm, _ = make_llm(num_blocks=20)
    prompts, params, _ = make_bad_batch()
    with pytest.raises(RequestError, match="prompt 3: prompt cannot be empty"):
        llm.generate(prompts, params, use_tqdm=False)
    assert not llm.llm_engine.has_unfinished_requests()
    assert llm.kv_cache_stats().peak_used_blocks == 0


def test_a_request_that_breaks_the_executor_ends_alone() -> None:
    llm, executor = make_llm()
    executor.broken_request = "2#"
    outputs = llm.generate(["aa", "bb", "cc", "dd"], SamplingParams(**GREEDY), use_tqdm=False)
    assert texts(outputs)[:2] + texts(outputs)[3:] == ["aa", "bb", "dd"]
    assert outputs[2].outputs[0].finish_reason == "error"
    assert outputs[2].error is not None
    assert outputs[2].error.code == "request_failed"


def test_a_request_whose_sampling_fails_ends_alone() -> None:
    llm, _ = make_llm(next_token=lambda ids, n: -1 if ids[0] == ord("c") else ids[len(ids) - n])
    outputs = llm.generate(["aaaa", "cccc", "dddd"], SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    assert texts(outputs) == ["aaaa", "", "dddd"]
    assert outputs[1].outputs[0].finish_reason == "error"
    assert outputs[1].metrics is not None
    assert outputs[1].metrics.is_corrupted


@pytest.mark.parametrize("kind", [RequestOutputKind.CUMULATIVE, RequestOutputKind.DELTA], ids=lambda kind: kind.name)
def test_a_stream_ends_with_what_generate_returns(kind: RequestOutputKind) -> None:
    llm, _ = make_llm()
    prompt = "🦙 ďábelské 你好 END tail"
    params = SamplingParams(temperature=0, max_tokens=80, stop="END", logprobs=1, output_kind=kind)
    (whole,) = llm.generate(prompt, params, use_tqdm=False)
    parts = [output.outputs[0] for output in llm.stream(prompt, params)]
    assert len(parts) > 10
    assert not any("\ufffd" in part.text for part in parts)
    expected = whole.outputs[0]
    assert expected.text == "🦙 ďábelské 你好 "
    if kind is RequestOutputKind.DELTA:
        assert "".join(part.text for part in parts) == expected.text
        assert [i for part in parts for i in part.token_ids] == expected.token_ids
        assert [entry for part in parts for entry in part.logprobs or ()] == expected.logprobs
    else:
        assert all(b.text.startswith(a.text) for a, b in itertools.pairwise(parts))
        assert parts[-1] == expected
    assert (parts[-1].finish_reason, parts[-1].stop_reason) == ("stop", "END")


def test_a_stream_of_several_prompts_says_which_is_which() -> None:
    llm, _ = make_llm()
    finals = {o.request_id: o.outputs[0].text for o in llm.stream(["aaa", "b"], SamplingParams(**GREEDY)) if o.finished}
    assert finals == {"0": "aaa", "1": "b"}


def test_a_stream_refuses_bad_prompts_before_it_is_read() -> None:
    llm, _ = make_llm()
    with pytest.raises(RequestError, match="prompt 1"):
        llm.stream(["a", ""])


def test_a_single_bad_prompt_is_refused_without_a_number() -> None:
    llm, _ = make_llm()
    with pytest.raises(RequestError, match=r"^prompt cannot be empty"):
        llm.generate("", use_tqdm=False)


def test_leaving_a_stream_early_frees_its_request() -> None:
    llm, _ = make_llm()
    stream = llm.stream("x" * 90, SamplingParams(**GREEDY))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert not llm.llm_engine.has_unfinished_requests()
    assert texts(llm.generate("abc", SamplingParams(**GREEDY), use_tqdm=False)) == ["abc"]


def test_generate_inside_a_stream_disturbs_neither() -> None:
    llm, _ = make_llm()
    params = SamplingParams(temperature=0, max_tokens=60, output_kind=RequestOutputKind.DELTA)
    seen = ""
    for output in llm.stream("0123456789" * 5, params):
        if len(seen) == 10:
            assert texts(llm.generate(["in", "side"], SamplingParams(**GREEDY), use_tqdm=False)) == ["in", "side"]
        seen += output.outputs[0].text
    assert seen == "0123456789" * 5


def test_threads_may_generate_at_once() -> None:
    llm, _ = make_llm()
    results: dict[int, list[str]] = {}

    def work(number: int) -> None:
        prompts = [f"thread {number} prompt {index}" for index in range(5)]
        results[number] = texts(llm.generate(prompts, SamplingParams(**GREEDY), use_tqdm=False))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == {n: [f"thread {n} prompt {i}" for i in range(5)] for n in range(4)}


def test_a_call_whose_requests_were_ended_by_others_does_not_wait_for_ever() -> None:
    llm, _ = make_llm(step_seconds=0.01)
    stream = llm.stream(["a" * 200], SamplingParams(temperature=0, max_tokens=400))
    next(stream)
    llm.llm_engine.abort_request(list(llm.llm_engine._core_ids))
    with pytest.raises(RequestError, match="ended by another call"):
        list(stream)


def test_ctrl_c_cancels_the_running_step_and_leaves_a_usable_engine() -> None:
    llm, executor = make_llm(step_seconds=30.0)

    def press() -> None:
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["abc", "def"], SamplingParams(**GREEDY), use_tqdm=False)
    assert executor.num_cancelled >= 1
    executor.step_seconds = 0.0
    assert llm.reset_prefix_cache()
    assert texts(llm.generate("xyz", SamplingParams(**GREEDY), use_tqdm=False)) == ["xyz"]


def test_several_completions_come_in_one_output() -> None:
    llm, _ = make_llm()
    params = SamplingParams(n=3, seed=5, max_tokens=10)
    (output,) = llm.generate("abc", params, use_tqdm=False)
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    assert {completion.text for completion in output.outputs} == {"abc"}
    assert output.metrics is not None
    assert output.metrics.seed == 5
    assert output.metrics.num_generation_tokens == 12


def test_chat_renders_the_template_without_special_tokens_of_its_own() -> None:
    llm, _ = make_llm()
    conversation = [{"role": "user", "content": "hi"}]
    for messages in (conversation, [conversation, conversation]):
        outputs = llm.chat(messages, SamplingParams(**GREEDY), use_tqdm=False)
        assert {output.prompt for output in outputs} == {"user: hi\nassistant: "}
    assert len(outputs) == 2


def test_a_chat_can_be_streamed_and_ends_with_what_chat_returns() -> None:
    llm, _ = make_llm()
    conversation = [{"role": "user", "content": "hi"}]
    parts = list(llm.stream_chat(conversation, SamplingParams(**GREEDY), chat_template_kwargs={"style": "short"}))
    assert len(parts) > 10
    (whole,) = llm.chat(conversation, SamplingParams(**GREEDY), use_tqdm=False)
    assert parts[-1].outputs[0] == whole.outputs[0]
    with pytest.raises(RequestError, match="prompt 1"):
        llm.stream_chat([conversation, []])


def test_a_bad_conversation_gets_its_own_error() -> None:
    llm, _ = make_llm()
    good = [{"role": "user", "content": "hi"}]
    outputs = llm.chat([good, []], SamplingParams(**GREEDY), use_tqdm=False, on_error="return")
    assert [output.error is None for output in outputs] == [True, False]
    with pytest.raises(RequestError, match="prompt 1"):
        llm.chat([good, []], use_tqdm=False)


@pytest.mark.parametrize(
    "variables", [[1], {1: 2}, {"tokenize": True}, {"conversation": []}, {"chat_template": "x"}], ids=repr
)
def test_template_variables_cannot_replace_arguments(variables: Any) -> None:
    llm, _ = make_llm()
    with pytest.raises(RequestError, match="chat_template_kwargs"):
        llm.chat([{"role": "user", "content": "hi"}], use_tqdm=False, chat_template_kwargs=variables)


@pytest.mark.parametrize("name", ["reset_running_requests", "reset_connector"])
def test_a_reset_that_is_not_supported_is_refused_by_its_name(name: str) -> None:
    llm, _ = make_llm()
    with pytest.raises(RequestError, match=f"^{name} is not supported"):
        llm.reset_prefix_cache(**{name: True})
    assert llm.reset_prefix_cache()


def test_a_closed_engine_says_so() -> None:
    llm, executor = make_llm()
    with llm:
        pass
    llm.close()
    assert executor.is_shut_down
    with pytest.raises(EngineDeadError, match="closed"):
        llm.generate("a", use_tqdm=False)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused() -> None:
    llm, _ = make_llm()
    pid = os.fork()
    if pid == 0:
        try:
            llm.generate("a", use_tqdm=False)
        except EngineDeadError:
            os._exit(42)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42


def test_an_idle_engine_uses_no_cpu() -> None:
    llm, _ = make_llm()
    llm.generate("a", use_tqdm=False)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.05


def test_metrics_count_tokens_and_cache_hits() -> None:
    llm, _ = make_llm()
    prompt = "the same beginning of forty-one characters"
    first, second = (llm.generate(prompt, SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)[0] for _ in "ab")
    assert first.num_cached_tokens == 0
    assert second.num_cached_tokens == 32
    metrics = llm.get_metrics()
    values = {metric.name: metric.value for metric in metrics}
    assert values["vllm:prompt_tokens"] == 2 * len(prompt)
    assert values["vllm:generation_tokens"] == 4
    assert sum(metric.value for metric in metrics if metric.name == "vllm:request_success") == 2
    assert values["vllm:num_requests_running"] == 0
    assert llm.reset_prefix_cache()


def test_timings_are_in_order() -> None:
    llm, _ = make_llm()
    (output,) = llm.generate("abc", SamplingParams(**GREEDY), use_tqdm=False)
    stats = output.metrics
    assert stats is not None
    assert 0 < stats.queued_ts <= stats.scheduled_ts <= stats.first_token_ts <= stats.last_token_ts
    assert stats.arrival_time > 1e9
    assert stats.numeric_fingerprint == "fake"


def test_unseeded_requests_report_seeds_that_repeat_with_the_engines() -> None:
    def seeds(seed: int) -> list[int | None]:
        llm, _ = make_llm(seed=seed)
        outputs = llm.generate(["a", "b"], SamplingParams(max_tokens=1), use_tqdm=False)
        return [output.metrics.seed if output.metrics else None for output in outputs]

    assert seeds(1) == seeds(1)
    assert len({*seeds(1), *seeds(2)}) == 4


def test_the_progress_bar_shows_speeds() -> None:
    made: list[dict[str, Any]] = []

    class Bar:
        def __init__(self, **options: Any) -> None:
            made.append(options)
            self.done = 0

        def update(self, count: int) -> None:
            self.done += count

        def close(self) -> None:
            made.append({"done": self.done, "postfix": self.postfix})  # type: ignore[attr-defined]

    llm, _ = make_llm()
    llm.generate(["a", "b"], SamplingParams(**GREEDY), use_tqdm=Bar)
    assert made[0]["desc"] == "Processed prompts"
    assert made[1]["done"] == 2
    assert "toks/s, output: " in made[1]["postfix"]


def test_stop_tokens_end_without_their_text() -> None:
    llm, _ = make_llm()
    params = SamplingParams(temperature=0, max_tokens=20, stop_token_ids=[ord("c")])
    kept = SamplingParams(temperature=0, max_tokens=20, stop_token_ids=[ord("c")], include_stop_str_in_output=True)
    cut, whole = (output.outputs[0] for output in llm.generate(["abcd"] * 2, [params, kept], use_tqdm=False))
    assert (cut.text, cut.stop_reason, cut.token_ids) == ("ab", ord("c"), [*b"abc"])
    assert whole.text == "abc"


def test_ignored_ends_of_text_go_on_to_the_length() -> None:
    llm, _ = make_llm(next_token=lambda _ids, _n: EOS)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    (output,) = llm.generate("a", params, use_tqdm=False)
    assert (output.outputs[0].token_ids, output.outputs[0].finish_reason) == ([EOS] * 6, "length")


def test_logprobs_have_the_chosen_token_first_with_its_rank() -> None:
    llm, _ = make_llm()
    params = SamplingParams(temperature=0, max_tokens=2, logprobs=2, prompt_logprobs=1)
    (output,) = llm.generate("abc", params, use_tqdm=False)
    completion = output.outputs[0]
    assert completion.logprobs is not None
    first = completion.logprobs[0]
    assert list(first) == [ord("a"), 0, 1]
    assert (first[ord("a")].rank, first[ord("a")].decoded_token) == (3, "a")
    assert [first[0].rank, first[1].rank] == [1, 2]
    assert completion.cumulative_logprob == pytest.approx(-1.0)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert [next(iter(entry)) for entry in output.prompt_logprobs[1:] if entry] == [*b"bc"]


def test_priority_runs_lower_numbers_first() -> None:
    llm, _ = make_llm(max_num_seqs=1)
    finished = [o.request_id for o in llm.stream(["aa", "bb"], SamplingParams(**GREEDY), priority=[5, 1]) if o.finished]
    assert finished == ["0", "1"], "the policy is fcfs here: priorities are ignored"


def test_all_completions_of_a_failing_prompt_end() -> None:
    llm, _ = make_llm(next_token=lambda ids, n: -1 if ids[0] == ord("b") else ids[len(ids) - n])
    outputs = llm.generate(["aa", "bb"], SamplingParams(n=3, max_tokens=2), use_tqdm=False)
    reasons = [[completion.finish_reason for completion in output.outputs] for output in outputs]
    assert reasons == [["length"] * 3, ["error"] * 3]


def test_many_completions_need_few_seats() -> None:
    llm, _ = make_llm(max_num_seqs=4)
    (output,) = llm.generate("abc", SamplingParams(n=300, max_tokens=1), use_tqdm=False)
    assert [completion.index for completion in output.outputs] == list(range(300))
    assert {completion.text for completion in output.outputs} == {"a"}
