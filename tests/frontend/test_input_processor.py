from __future__ import annotations

from typing import Any, NoReturn

import pytest
from face_fakes import EOS, IM_START, ByteTokenizer

from octavo import QueueFullError, RequestError, RequestOutputKind, SamplingParams
from octavo.frontend.embedding import EmbeddingConfig
from octavo.frontend.input_processor import EngineInput, InputProcessor
from octavo.grammar.compiler import GrammarCompiler
from octavo.structured_outputs import StructuredOutputsParams

VOCAB = 300
HIDDEN = 8
MAX_MODEL_LEN = 64


def make_processor(
    max_logprobs: int = 20, tokenizer: ByteTokenizer | None = None, embedding: EmbeddingConfig | None = None
) -> InputProcessor:
    tokenizer = tokenizer or ByteTokenizer()
    return InputProcessor(
        tokenizer,  # type: ignore[arg-type]
        vocab_size=VOCAB,
        eos_token_ids=(EOS, IM_START),
        max_model_len=MAX_MODEL_LEN,
        way_to_more_length="raise max_model_len",
        max_logprobs=max_logprobs,
        grammars=GrammarCompiler(tokenizer, vocab_size=VOCAB, eos_token_ids={EOS}),  # type: ignore[arg-type]
        hidden_size=HIDDEN,
        embedding=embedding or EmbeddingConfig(),
    )


def process(prompt: Any, processor: InputProcessor | None = None, **params: Any) -> EngineInput:
    (result,) = (processor or make_processor()).process([prompt], [SamplingParams(**params)])
    if isinstance(result, RequestError):
        raise result
    return result


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "cannot be empty"),
        ([], "cannot be empty"),
        ({"prompt": ""}, "cannot be empty"),
        ({"prompt_token_ids": []}, "cannot be empty"),
        (None, "must be text"),
        (5, "must be text"),
        (b"bytes", "must be text"),
        ([-1], "out of vocabulary"),
        ([VOCAB], "out of vocabulary"),
        ([2**31], "out of vocabulary"),
        ([2**63], "out of vocabulary"),
        ([1.5], "must be integers"),
        ([True], "must be integers"),
        (["a"], "must be integers"),
        ([[1]], "must be integers"),
        ("\ud800", "not valid Unicode"),
        ("x" * 64, "maximum context length is 64"),
        ("x" * 65, "prompt has 65 tokens"),
        ("x" * 5_000_000, "prompt has at least"),
        ({"prompt": "a", "multi_modal_data": {}}, "multi_modal_data"),
        ({"prompt_embeds": []}, "prompt_embeds"),
        ({"text": "a"}, "text"),
        ({}, "needs `prompt`"),
        ({"prompt": 5}, "needs `prompt`"),
        ({"prompt_token_ids": "ab"}, "list of token ids"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_prompt_that_cannot_be_served_is_refused(prompt: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        process(prompt)
    assert caught.value.parameter in ("prompt", "prompt_token_ids")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("salt", ["", "x" * 129, "a/b", "\0", 5], ids=repr)
def test_a_bad_cache_salt_is_refused(salt: Any) -> None:
    with pytest.raises(RequestError, match="cache_salt"):
        process({"prompt": "a", "cache_salt": salt})


def test_the_longest_prompt_leaves_room_for_one_token() -> None:
    assert len(process("x" * 63).prompt_token_ids) == 63


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"stop_token_ids": [VOCAB]}, "stop_token_ids holds token id 300, which is out of vocabulary"),
        ({"allowed_token_ids": [1, VOCAB]}, "allowed_token_ids"),
        ({"logit_bias": {999_999: 5.0}}, "logit_bias"),
        ({"logprobs": 21}, "greater than max allowed: 20"),
        ({"logprobs": -1}, "asks for 300 logprobs"),
        ({"prompt_logprobs": 10**6}, "greater than max allowed: 20"),
        ({"max_tokens": None, "min_tokens": 10**9}, "min_tokens"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_parameters_are_checked_against_the_model(params: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        process("a", **params)


def test_ids_between_the_tokenizers_and_the_logits_width_are_allowed() -> None:
    assert len(ByteTokenizer()._bytes) < VOCAB
    assert process("a", stop_token_ids=[VOCAB - 1]).params.stop_token_ids == [VOCAB - 1]


def test_bad_words_beyond_the_logits_width_are_refused() -> None:
    tokenizer = ByteTokenizer()
    tokenizer.encode_batch = lambda texts, **_options: [[500]] * len(texts)  # type: ignore[method-assign]
    with pytest.raises(RequestError, match="bad_words"):
        process([1], make_processor(tokenizer=tokenizer), bad_words=["a"])


def test_a_text_with_tokens_beyond_the_logits_width_is_refused() -> None:
    tokenizer = ByteTokenizer()
    tokenizer.encode_batch = lambda texts, **_options: [[1, VOCAB]] * len(texts)  # type: ignore[method-assign]
    with pytest.raises(RequestError, match="prompt holds token id 300, which is out of vocabulary"):
        process("a", make_processor(tokenizer=tokenizer))


@pytest.mark.parametrize("params", [None, {"max_tokens": 1}], ids=repr)
def test_params_of_another_type_are_refused(params: Any) -> None:
    (result,) = make_processor().process(["a"], [params])
    assert isinstance(result, RequestError)
    assert "params must be SamplingParams" in str(result)


def test_bad_words_without_tokens_are_refused() -> None:
    tokenizer = ByteTokenizer()
    tokenizer.encode_batch = lambda texts, **_options: [[]] * len(texts)  # type: ignore[method-assign]
    with pytest.raises(RequestError, match="has no tokens"):
        process([1], make_processor(tokenizer=tokenizer), bad_words=["\u200b"])


def test_a_bad_word_of_white_space_is_itself() -> None:
    assert process("a", bad_words=["\n"]).params.bad_words_token_ids == [[ord("\n")]]


def test_bad_words_are_tokenised_with_and_without_a_space() -> None:
    tokenizer = ByteTokenizer()
    ids = {"cat": [1], " cat": [2], "dog": [3, 4], " dog": [5, 6, 7]}
    tokenizer.encode_batch = lambda texts, **_options: [ids[t] for t in texts]  # type: ignore[method-assign]
    source = process([1], make_processor(tokenizer=tokenizer), bad_words=["cat", "dog"])
    assert source.params.bad_words_token_ids == [[1], [2], [3, 4]]


def test_all_logprobs_mean_the_width_of_the_logits() -> None:
    assert process("a", make_processor(max_logprobs=-1), logprobs=-1).params.logprobs == VOCAB


def test_all_texts_are_tokenised_in_one_call() -> None:
    tokenizer = ByteTokenizer()
    results = make_processor(tokenizer=tokenizer).process(["a", "", [5], "b"], [SamplingParams()] * 4)
    assert tokenizer.num_encode_calls == 1
    assert [isinstance(result, RequestError) for result in results] == [False, True, False, False]


def test_the_engine_gets_a_copy_of_the_parameters() -> None:
    params = SamplingParams(stop=["x"])
    first, second = make_processor().process(["a", "b"], [params, params], output_kind=RequestOutputKind.FINAL_ONLY)
    assert isinstance(first, EngineInput)
    assert isinstance(second, EngineInput)
    assert first.params is second.params is not params
    assert first.params.output_kind is RequestOutputKind.FINAL_ONLY
    assert (first.params.eos_token_id, first.params.eos_token_ids) == (EOS, {EOS, IM_START})
    assert (params.output_kind, params.eos_token_ids) == (RequestOutputKind.CUMULATIVE, frozenset())


def test_parameters_spoilt_after_construction_are_found() -> None:
    params = SamplingParams()
    params.temperature = float("nan")
    (result,) = make_processor().process(["a"], [params])
    assert isinstance(result, RequestError)
    assert result.parameter == "temperature"


def test_a_grammar_that_others_leave_no_time_is_the_error_of_its_prompts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = make_processor()
    monkeypatch.setattr(processor._grammars, "compile", make_busy)
    form = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))
    results = processor.process(["one", "two", "three"], [SamplingParams(), form, form])
    assert [isinstance(result, EngineInput) for result in results] == [True, False, False]
    assert isinstance(results[1], RequestError)
    assert (results[1].parameter, str(results[1])) == ("structured_outputs", "structured_outputs: all are busy.")
    with pytest.raises(QueueFullError, match="all are busy"):
        processor.process(["one", "two"], [SamplingParams(), form], raise_queue_full=True)


def make_busy(_: object) -> NoReturn:
    raise QueueFullError("all are busy.")
