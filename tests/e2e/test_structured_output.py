"""A grammar holds whatever runs beside it, and the answer under it is the same in any company."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import same_answer_runs as runs
from tiny_models import TINY_DIR

from octavo import LLM, BeamSearchParams, RequestError, SamplingParams, StructuredOutputsParams

MODEL = TINY_DIR / "llama"
VOCAB, EOS = 2048, 2
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "long tag"]}, "minItems": 1, "maxItems": 4},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
COMPACT = {"json": SCHEMA, "disable_any_whitespace": True}
PROMPT = [20, 300, 7, 1500, 42]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(MODEL, max_model_len=256, max_num_seqs=4) as engine:
        yield engine


def answer(llm: LLM, form: dict[str, Any], **params: Any) -> Any:
    given = SamplingParams(**{"temperature": 1.0, "seed": 3, "max_tokens": 120, "structured_outputs": form, **params})
    return llm.generate([PROMPT], given, use_tqdm=False)[0]


def make_workload() -> runs.Workload:
    """That of the other tests, with forms for seven of its eight requests."""
    plain = runs.make_workload(VOCAB)
    forms: list[dict[str, Any] | None] = [
        COMPACT,
        {"regex": "[a-zA-Z0-9 ,.]{30,90}"},
        None,
        {"json": {"type": "array", "items": {"type": "string"}, "minItems": 9}},
        {"grammar": 'root ::= pair+\npair ::= [a-z]+ "=" [0-9]+ ";"'},
        {"choice": [f"{digit} is a digit that begins this line" for digit in "123"]},
        {"json_object": True},
        {"regex": "[^a]{30,}"},
    ]
    for params, form in zip(plain.params, forms, strict=True):
        params.structured_outputs = None if form is None else StructuredOutputsParams(**form)
    return plain


ALONE: list[list[bytes]] = []


@pytest.mark.parametrize("way", runs.WAYS.values(), ids=runs.WAYS.keys())
def test_answers_under_grammars_are_those_of_each_request_alone(way) -> None:
    workload = make_workload()
    if not ALONE:
        ALONE.append(runs.alone(MODEL, workload))
    assert way(MODEL, workload) == ALONE[0]


@pytest.mark.parametrize("seed", range(6))
def test_a_random_model_writes_valid_json(llm: LLM, seed: int) -> None:
    output = answer(llm, COMPACT, seed=seed).outputs[0]
    assert output.finish_reason == "stop"
    assert output.token_ids[-1] == EOS
    jsonschema.validate(json.loads(output.text), SCHEMA)


def test_one_batch_may_hold_every_kind(llm: LLM) -> None:
    forms: list[dict[str, Any]] = [
        {"choice": ["red", "green"]}, {"regex": r"\d{3}-\d{4}"}, {"grammar": 'root ::= "yes" | "no"'}, COMPACT,
    ]  # fmt: skip
    params = [SamplingParams(seed=1, max_tokens=120, structured_outputs=form) for form in forms]
    free = SamplingParams(seed=1, max_tokens=8, ignore_eos=True)
    outputs = llm.generate([PROMPT] * 5, [*params, free], use_tqdm=False)
    text = [output.outputs[0].text for output in outputs]
    assert text[0] in ("red", "green")
    assert re.fullmatch(r"\d{3}-\d{4}", text[1])
    assert text[2] in ("yes", "no")
    assert json.loads(text[3]).keys() == SCHEMA["properties"].keys()
    assert outputs[4].outputs[0].token_ids == llm.generate([PROMPT], free, use_tqdm=False)[0].outputs[0].token_ids


@pytest.mark.parametrize("max_num_seqs", [4, 2], ids=["all seated", "late children"])
def test_each_completion_of_a_fork_has_its_own_place_in_the_grammar(max_num_seqs: int) -> None:
    with LLM(MODEL, max_model_len=256, max_num_seqs=max_num_seqs) as llm:
        forked = answer(llm, COMPACT, n=4, seed=40).outputs
        for index, completion in enumerate(forked):
            assert completion.token_ids == answer(llm, COMPACT, seed=40 + index).outputs[0].token_ids
            jsonschema.validate(json.loads(completion.text), SCHEMA)


def test_a_bad_form_costs_its_own_prompt_only(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=4, seed=1, structured_outputs=form) for form in (None, {"regex": "["})]
    good, bad = llm.generate([PROMPT] * 2, params, use_tqdm=False, on_error="return")
    assert len(good.outputs[0].token_ids) == 4
    assert bad.outputs[0].finish_reason == "error"
    assert bad.error is not None
    assert "invalid regex" in bad.error.message
    with pytest.raises(RequestError, match="invalid regex"):
        llm.generate([PROMPT], params[1], use_tqdm=False)


def test_a_cut_answer_ends_with_length(llm: LLM) -> None:
    output = answer(llm, {"regex": "[a-z]{300}"}, max_tokens=5).outputs[0]
    assert (output.finish_reason, len(output.token_ids)) == ("length", 5)


def test_a_complete_grammar_ends_the_output_whatever_min_tokens_and_ignore_eos_say(llm: LLM) -> None:
    for params in ({"min_tokens": 50}, {"ignore_eos": True}, {"min_tokens": 50, "ignore_eos": True}):
        output = answer(llm, {"regex": "ab{2}c"}, **params).outputs[0]
        assert (output.text, output.finish_reason, output.stop_reason) == ("abbc", "stop", None)


def test_min_tokens_go_on_as_long_as_the_grammar_lets_them(llm: LLM) -> None:
    form = {"regex": "[a-z]{0,200}"}
    assert len(answer(llm, form, min_tokens=20, max_tokens=40, logit_bias={EOS: 100}).outputs[0].token_ids) == 21
    eager = answer(llm, form, max_tokens=40, logit_bias={EOS: 100}).outputs[0]
    assert eager.token_ids == [EOS]
    assert eager.text == ""


def test_a_stop_string_ends_the_output_before_the_grammar_does(llm: LLM) -> None:
    output = answer(llm, {"regex": "aaab{50}"}, stop=["ab"]).outputs[0]
    assert (output.text, output.stop_reason) == ("aa", "ab")


def test_allowed_tokens_are_cut_with_the_grammar_and_still_let_it_end(llm: LLM) -> None:
    digits = [token_id for token_id in range(VOCAB) if llm.get_tokenizer().id_to_bytes(token_id) in (b"3", b"x")]
    output = answer(llm, {"regex": r"\d{3}"}, allowed_token_ids=digits).outputs[0]
    assert (output.text, output.finish_reason) == ("333", "stop")


def test_demands_that_exclude_each_other_end_the_request_with_the_reason(llm: LLM) -> None:
    letters = [token_id for token_id in range(VOCAB) if llm.get_tokenizer().id_to_bytes(token_id) == b"x"]
    output = answer(llm, {"regex": r"\d{3}"}, allowed_token_ids=letters)
    assert output.outputs[0].finish_reason == "error"
    assert output.error.code == "request_error"
    assert "no token is allowed" in output.error.message
    assert not output.metrics.is_corrupted


def test_a_grammar_that_gets_too_complex_ends_its_own_request(llm: LLM) -> None:
    form = {"grammar": 'start: (("a"{9999}){9999}){9999}'}
    params = [SamplingParams(seed=1, max_tokens=9, structured_outputs=entry) for entry in (form, COMPACT)]
    failed, other = llm.generate([PROMPT] * 2, params, use_tqdm=False, on_error="return")
    assert failed.outputs[0].finish_reason == "error"
    assert "cannot be followed any further" in failed.error.message
    assert other.outputs[0].token_ids == answer(llm, COMPACT, seed=1, max_tokens=9).outputs[0].token_ids


def test_logprobs_are_those_of_the_model_without_the_grammar(llm: LLM) -> None:
    free = llm.generate([PROMPT], SamplingParams(max_tokens=1, logprobs=20, temperature=0), use_tqdm=False)[0]
    held = answer(llm, {"regex": r"\d{3}"}, max_tokens=1, logprobs=20, temperature=0)
    top = [{i: entry.logprob for i, entry in out.outputs[0].logprobs[0].items()} for out in (free, held)]
    assert set(top[0].items()) <= set(top[1].items())


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3"], ids=["byte fallback", "gemma", "byte level"])
def test_odd_texts_come_out_exactly_whatever_the_tokenizer(name: str) -> None:
    choices = [" leading", "  two  spaces ", "ünï 𝄞", "▁", "\n", "é", "<s>", "</s>"]
    with LLM(TINY_DIR / name, max_model_len=64, max_num_seqs=8) as llm:
        half = next(i for i in range(VOCAB) if llm.get_tokenizer().id_to_bytes(i) == b"\xc3")
        params = [SamplingParams(seed=1, max_tokens=60, structured_outputs={"choice": [each]}) for each in choices]
        for prompt in ([20, 30, 7], [20, half]):  # the second ends in the middle of a character
            outputs = llm.generate([prompt] * len(choices), params, use_tqdm=False)
            assert [output.outputs[0].text for output in outputs] == choices


def test_a_beam_search_has_no_forms(llm: LLM) -> None:
    with pytest.raises(RequestError, match="not supported in a beam search"):
        llm.beam_search(
            [{"prompt_token_ids": PROMPT}], BeamSearchParams(beam_width=2, max_tokens=4, structured_outputs=COMPACT)
        )  # type: ignore[arg-type]


def test_forms_hold_for_every_completion_whatever_else_is_asked(llm: LLM) -> None:
    form = {"regex": r"\d{2,4}"}
    output = answer(llm, form, n=3, min_tokens=4, ignore_eos=True, logprobs=2, stop=["99999"])
    for completion in output.outputs:
        assert re.fullmatch(r"\d{4}", completion.text)
        assert completion.finish_reason == "stop"
        assert len(completion.logprobs) == len(completion.token_ids)


@pytest.mark.slow
def test_a_real_model_writes_valid_json(smollm2_path: Path) -> None:
    with LLM(smollm2_path, max_model_len=512) as llm:
        params = SamplingParams(temperature=0, max_tokens=100, structured_outputs={"json": SCHEMA})
        (output,) = llm.chat([{"role": "user", "content": "Describe a person as JSON."}], params, use_tqdm=False)
    jsonschema.validate(json.loads(output.outputs[0].text), SCHEMA)
