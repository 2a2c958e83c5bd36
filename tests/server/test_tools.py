"""Tools and thoughts in chats: what bodies may say, how calls are demanded, and what answers and streams tell."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from face_fakes import ByteTokenizer, echo_prompt, make_llm

sys.path.insert(0, str(Path(__file__).parent / "parsers"))
sys.path.insert(0, str(Path(__file__).parent.parent / "grammar"))

from grammar_helpers import accepts, make_compiler, random_output
from published_outputs import PUBLISHED, TOOLS, Published, said

from octavo.errors import ConfigError, RequestError
from octavo.grammar.compiler import GrammarCompiler
from octavo.llm import LLM
from octavo.sampling_params import SamplingParams
from octavo.server.options import ServerOptions
from octavo.server.parsers.contract import ParsedCall, ParsedMessage, parse_whole
from octavo.server.parsers.formats import OutputFormat
from octavo.server.parsers.plan import ReadingPlan
from octavo.server.protocol.calls import Call, ProtocolContext, parse_chat, parse_completion, parse_tokenize
from octavo.server.protocol.limits import RequestLimits
from octavo.server.protocol.tool_forms import after_thought, forced_calls, or_calls
from octavo.structured_outputs import FramedOutputs, StructuredOutputsParams

FUNCTIONS = [{"type": "function", "function": {"name": name, "parameters": TOOLS[name]}} for name in TOOLS]
NAMED = {"type": "function", "function": {"name": "now"}}
SCHEMAS: dict[str, dict[str, Any]] = {
    "add": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"$ref": "#/$defs/b"}},
        "required": ["a", "b"],
        "additionalProperties": False,
        "$defs": {"b": {"enum": ["x", "y"]}},
    },
    "now": {},
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    llm, _ = make_llm(next_token=echo_prompt)
    yield llm
    llm.close()


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return make_compiler()


def make_context(form: str | None, *, allows_auto_calls: bool = True, **fields: Any) -> ProtocolContext:
    return ProtocolContext(
        model_names=("m",),
        default_sampling_params=SamplingParams(),
        limits=RequestLimits(),
        texts=ByteTokenizer(),
        output_format=OutputFormat(form, "think", **fields),
        allows_auto_calls=allows_auto_calls,
    )


def parse(form: str | None = "hermes", context: ProtocolContext | None = None, **body: Any) -> Call:
    body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 400, **body}
    return parse_chat(json.dumps(body).encode(), context or make_context(form))


def with_output(call: Call, output: Published) -> Call:
    """Return a call whose model writes an output: it says its prompt again."""
    return replace(call.with_rendered(output.prompt), prompts=[output.text])


def whole_answer(llm: LLM, output: Published, **body: Any) -> dict[str, Any]:
    call = with_output(parse(output.form, **body), output)
    outputs = list(llm.stream(call.prompts, call.params))
    choice: dict[str, Any] = json.loads(call.answer("1", 5).body(outputs))["choices"][0]
    return choice


def streamed_answer(llm: LLM, output: Published, **body: Any) -> dict[str, Any]:
    """Return what a client gathers from a stream, in the form of a whole answer."""
    call = with_output(parse(output.form, stream=True, **body), output)
    writer = call.answer("1", 5)
    data = b"".join(writer.chunk(0, part) for part in llm.stream(call.prompts, call.params)) + writer.end()
    chunks = [json.loads(event[6:]) for event in data.decode().split("\n\n") if event.startswith("data: {")]
    message: dict[str, Any] = {"content": "", "reasoning": "", "reasoning_content": ""}
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        delta = chunk["choices"][0]["delta"]
        for name in message:
            message[name] += delta.get(name, "")
        for piece in delta.get("tool_calls", ()):
            if piece["index"] not in calls:
                assert piece["type"] == "function"
                calls[piece["index"]] = {"id": piece["id"], "name": piece["function"]["name"], "arguments": ""}
            calls[piece["index"]]["arguments"] += piece["function"]["arguments"]
    assert list(calls) == list(range(len(calls)))
    return {**message, "calls": list(calls.values()), "finish_reason": chunks[-1]["choices"][0]["finish_reason"]}


def gathered(choice: dict[str, Any]) -> dict[str, Any]:
    """Return a whole answer in the form of `streamed_answer`."""
    message = choice["message"]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning", ""),
        "reasoning_content": message.get("reasoning_content", ""),
        "calls": [{"id": call["id"], **call["function"]} for call in message.get("tool_calls", ())],
        "finish_reason": choice["finish_reason"],
    }


@pytest.fixture(params=PUBLISHED.values(), ids=PUBLISHED)
def published(request: pytest.FixtureRequest) -> Published:
    output: Published = request.param
    return output


# ---------------------------------------------------------------- answers


def asked_tools(output: Published) -> dict[str, Any]:
    return {"tools": FUNCTIONS} if output.form else {}


def test_an_answer_has_the_calls_and_the_thought(llm: LLM, published: Published) -> None:
    choice = whole_answer(llm, published, **asked_tools(published))
    answer = gathered(choice)
    calls = [ParsedCall(call["id"], call["name"], call["arguments"]) for call in answer["calls"]]
    message = ParsedMessage(answer["content"], answer["reasoning"], calls)
    assert said(message) == (published.reasoning, published.content, published.calls)
    assert answer["reasoning_content"] == answer["reasoning"]
    assert choice["finish_reason"] == ("tool_calls" if published.calls else "stop")


def test_content_is_null_only_where_there_is_something_else(llm: LLM) -> None:
    assert whole_answer(llm, PUBLISHED["hermes, one"], tools=FUNCTIONS)["message"]["content"] is None
    assert whole_answer(llm, Published("hermes", "<tool_call>"), tools=FUNCTIONS)["message"]["content"] == "<tool_call>"


@pytest.mark.parametrize("name", ["hermes, two behind text", "hermes, behind a thought", "qwen3_coder, one",
                                  "llama3_json, two", "mistral, a list", "mistral, names with ids",
                                  "a thought that the prompt has opened"])  # fmt: skip
def test_a_stream_tells_what_the_answer_does_also_if_it_is_cut_anywhere(llm: LLM, name: str) -> None:
    output = PUBLISHED[name]
    for max_tokens in range(1, len(output.text.encode()) + 2):
        body = {**asked_tools(output), "max_tokens": max_tokens}
        whole = gathered(whole_answer(llm, output, **body))
        assert streamed_answer(llm, output, **body) == whole
        assert (whole["finish_reason"] == "length") is (max_tokens <= len(output.text.encode()))


def test_a_thought_is_left_out_if_nobody_wants_it(llm: LLM) -> None:
    message = whole_answer(llm, PUBLISHED["a thought"], include_reasoning=False)["message"]
    assert message["content"] == "Yes, </think>."
    assert "reasoning" not in message


def test_only_the_first_call_is_told_where_calls_are_not_parallel(llm: LLM) -> None:
    body = {"tools": FUNCTIONS, "parallel_tool_calls": False}
    answer = gathered(whole_answer(llm, PUBLISHED["hermes, two behind text"], **body))
    assert [call["name"] for call in answer["calls"]] == ["get_weather"]
    assert streamed_answer(llm, PUBLISHED["hermes, two behind text"], **body) == answer


@pytest.mark.parametrize("body", [{}, {"tools": FUNCTIONS, "tool_choice": "none"}], ids=["no tools", "none"])
def test_without_tools_calls_are_text(llm: LLM, body: dict[str, Any]) -> None:
    output = PUBLISHED["hermes, one"]
    choice = whole_answer(llm, output, **body)
    assert (choice["message"]["content"], choice["finish_reason"]) == (output.text, "stop")


def test_a_call_that_the_request_has_named_ends_with_stop(llm: LLM) -> None:
    call = parse("hermes", tools=FUNCTIONS, tool_choice=NAMED, response_format=None)
    call.params.structured_outputs = None  # the model of these tests follows none
    call = with_output(call, PUBLISHED["hermes, one"])
    outputs = list(llm.stream(call.prompts, call.params))
    choice = json.loads(call.answer("1", 5).body(outputs))["choices"][0]
    assert choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "stop"


# ---------------------------------------------------------------- what bodies may say


def tool(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"tools": [{}]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": "function", "function": "f"}]}, "tools"),
        ({"tools": [tool(name="a\nb")]}, "tools"),
        ({"tools": [tool(name="../x")]}, "tools"),
        ({"tools": [tool(name="")]}, "tools"),
        ({"tools": [tool(name="a" * 65)]}, "tools"),
        ({"tools": [tool(name=5)]}, "tools"),
        ({"tools": [tool(description=5)]}, "tools"),
        ({"tools": [tool(parameters=[])]}, "tools"),
        ({"tools": [tool(parameters={"type": "string"})]}, "tools"),
        ({"tools": [tool(parameters={"properties": []})]}, "tools"),
        ({"tools": [tool(parameters={"pattern": "("})]}, "tools"),
        ({"tools": [tool(parameters={"properties": {"a": {"items": {"pattern": "a**["}}}})]}, "tools"),
        ({"tools": [tool(parameters={"patternProperties": {"[": {}}})]}, "tools"),
        ({"tools": [tool(parameters={"pattern": 5})]}, "tools"),
        ({"tools": [tool(parameters={"pattern": "a" * 40_000})]}, "tools"),
        ({"tools": [tool(name=f"f{index}", parameters={"pattern": "a" * 400}) for index in range(100)]}, "tools"),
        ({"tools": [tool(), tool()]}, "tools"),
        ({"tools": [tool(name=f"f{index}") for index in range(10_000)]}, "tools"),
        ({"tools": 5}, "tools"),
        ({"tools": [tool()], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": 5}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        (
            {
                "tools": [tool()],
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool()] * 2}},
            },
            "tool_choice",
        ),
        (
            {
                "tools": [tool()],
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": [tool()]}},
            },
            "tool_choice",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [{}] * 32_769}]}, "messages"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"functions": [tool()["function"]]}, "functions"),
        ({"tools": [tool()], "tool_choice": "required", "structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_tools_that_cannot_be_served_are_refused(body: dict[str, Any], parameter: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse(**body)
    assert refused.value.parameter == parameter


@pytest.mark.parametrize(
    "parameters",
    [
        None,
        {},
        {"type": "object", "properties": {"pattern": {"type": "string", "pattern": r"^\p{L}+(?<n>a)$"}}},
        {"type": "object", "not": {"required": ["x"]}, "properties": {"x": {"const": {"pattern": "("}}}},
    ],
    ids=["none", "empty", "another dialect", "a pattern that is none"],
)
def test_schemas_that_only_the_model_reads_may_say_anything(parameters: Any) -> None:
    assert parse(tools=[tool(parameters=parameters)]).conversation is not None


@pytest.mark.parametrize("name", ["a", "a-b_c.d", "A" * 64, "mcp.server.1"])
def test_names_of_functions_are_letters_digits_and_a_few_marks(name: str) -> None:
    conversation = parse(tools=[tool(name=name)]).conversation
    assert conversation is not None
    assert conversation["tools"][0]["function"]["name"] == name


def test_the_template_sees_the_tools_as_they_were_given_but_for_what_is_no_models_business() -> None:
    given = tool(description="d", parameters={"type": "object"}, strict=True, extra=1)
    conversation = parse(tools=[given]).conversation
    assert conversation is not None
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}, "extra": 1}
    assert conversation["tools"] == [{"type": "function", "function": function}]


def test_no_tools_are_shown_where_none_may_be_called() -> None:
    conversation = parse(tools=[tool()], tool_choice="none").conversation
    assert conversation is not None
    assert conversation["tools"] is None


@pytest.mark.parametrize(
    ("body", "variables"),
    [
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
         {"reasoning_effort": "none", "enable_thinking": True}),
        ({}, {}),
    ],
    ids=["low", "none", "overruled", "left out"],
)  # fmt: skip
def test_templates_are_told_how_long_to_think(body: dict[str, Any], variables: dict[str, Any]) -> None:
    conversation = parse(**body).conversation
    assert conversation is not None
    told = {name: conversation[name] for name in ("reasoning_effort", "enable_thinking") if name in conversation}
    assert told == variables


def test_tools_are_counted_as_part_of_a_conversation() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [tool()]}
    conversation = parse_tokenize(json.dumps(body).encode(), make_context(None)).conversation
    assert conversation is not None
    assert conversation["tools"] == [tool(parameters={"type": "object", "properties": {}})]


def test_completions_have_no_tools() -> None:
    with pytest.raises(RequestError, match="chat"):
        parse_completion(json.dumps({"prompt": "a", "tools": [tool()]}).encode(), make_context("hermes"))


def test_a_model_whose_calls_nobody_can_read_is_not_left_the_choice() -> None:
    with pytest.raises(RequestError, match="tool-call-parser") as refused:
        parse(None, tools=[tool()])
    assert refused.value.parameter == "tools"
    assert isinstance(parse(None, tools=[tool()], tool_choice="required").params.structured_outputs, FramedOutputs)


@pytest.mark.parametrize("hides_tools", [False, True])
def test_where_the_template_hides_tools_a_parser_alone_is_not_called_the_way_out(hides_tools: bool) -> None:
    with pytest.raises(RequestError, match="tool-call-parser") as refused:
        parse(context=make_context(None, hides_tools=hides_tools), tools=[tool()])
    assert ("with a --chat-template that shows tools" in str(refused.value)) is hides_tools


def test_a_server_can_leave_calls_in_the_text(llm: LLM) -> None:
    output = PUBLISHED["hermes, one"]
    call = with_output(parse(context=make_context(None, leaves_calls=True), tools=FUNCTIONS), output)
    body = json.loads(call.answer("1", 5).body(list(llm.stream(call.prompts, call.params))))
    assert body["choices"][0]["message"]["content"] == output.text


def test_a_server_can_refuse_to_leave_the_choice_to_models() -> None:
    context = make_context("hermes", allows_auto_calls=False)
    with pytest.raises(RequestError, match="tool_choice"):
        parse(context=context, tools=[tool()])
    assert parse(context=context, tools=[tool()], tool_choice="required")


def test_marks_that_are_special_tokens_are_not_skipped() -> None:
    context = make_context("mistral", has_special_marks=True)
    assert not parse(context=context, tools=FUNCTIONS).with_rendered("</think>").params.skip_special_tokens
    assert parse(context=context).with_rendered("</think>").params.skip_special_tokens


# ---------------------------------------------------------------- demanded calls


@pytest.mark.parametrize("form", ["hermes", None])
@pytest.mark.parametrize("is_parallel", [True, False], ids=["many", "one"])
@pytest.mark.parametrize("seed", range(5))
def test_a_demanded_call_fits_its_schema(
    compiler: GrammarCompiler, form: str | None, is_parallel: bool, seed: int
) -> None:
    wanted = forced_calls(SCHEMAS, form=form, is_parallel=is_parallel)
    params = SamplingParams(structured_outputs=wanted)
    params.eos_token_ids = frozenset({256})
    output = random_output(compiler.make_matcher(compiler.compile(wanted), params), seed)
    assert output is not None
    plan = ReadingPlan(OutputFormat(form), SCHEMAS, is_forced=True)
    message = parse_whole(plan.make_parsers("", "id")(0), output.decode("utf-8", "replace"))
    assert message.content == ""
    assert len(message.calls) == 1 or (message.calls and is_parallel)
    for call in message.calls:
        jsonschema.validate(json.loads(call.arguments), {"type": "object", **SCHEMAS[call.name]})


def test_a_demanded_call_is_written_as_the_model_knows_it(compiler: GrammarCompiler) -> None:
    text = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "x"}}\n</tool_call>'
    grammar = compiler.compile(forced_calls(SCHEMAS, form="hermes", is_parallel=True))
    assert accepts(grammar, text)
    assert accepts(grammar, f"{text}\n{text}")
    assert not accepts(grammar, text.replace('"x"', '"z"'))
    assert not accepts(grammar, text.replace("add", "sub"))


def test_a_named_call_is_the_only_one(compiler: GrammarCompiler) -> None:
    form = parse(tools=FUNCTIONS, tool_choice=NAMED).params.structured_outputs
    assert isinstance(form, StructuredOutputsParams)
    grammar = compiler.compile(form)
    text = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert accepts(grammar, text)
    assert not accepts(grammar, f"{text}\n{text}")
    assert not accepts(grammar, text.replace("now", "get_weather"))


def test_allowed_tools_are_those_that_may_be_called() -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
    form = parse(tools=FUNCTIONS, tool_choice=allowed).params.structured_outputs
    assert isinstance(form, FramedOutputs)
    assert list(form.parts) == ["tool_0"]


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_the_model_sees_the_allowed_tools_alone(mode: str) -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [NAMED]}}
    conversation = parse(tools=FUNCTIONS, tool_choice=allowed).conversation
    assert conversation is not None
    assert [shown["function"]["name"] for shown in conversation["tools"]] == ["now"]


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "possible"])
def test_a_form_begins_where_the_thought_has_ended(compiler: GrammarCompiler, is_open: bool) -> None:
    for wanted, text in [
        (StructuredOutputsParams(regex=r"\d+"), "17"),
        (StructuredOutputsParams(choice=["yes", "no"]), "yes"),
        (StructuredOutputsParams(json={"type": "array"}), "[1]"),
        (StructuredOutputsParams(grammar='start: "a" b\nb: "b"'), "ab"),
        (forced_calls(SCHEMAS, form="hermes", is_parallel=False),
         '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'),
    ]:  # fmt: skip
        grammar = compiler.compile(after_thought(wanted, is_open=is_open))
        mark = "" if is_open else "<think>"
        assert accepts(grammar, f"{mark}\nHm </thin\n</think>\n\n{text}")
        assert accepts(grammar, text) is not is_open
        assert not accepts(grammar, f"{mark}Hm")
        assert not accepts(grammar, f"{mark}Hm</think>\n\n!")


def test_whether_a_thought_comes_first_depends_on_the_prompt() -> None:
    call = parse(response_format={"type": "json_object"})
    opened = call.with_rendered("assistant\n<think>\n").params.structured_outputs
    possible = call.with_rendered("assistant\n").params.structured_outputs
    none = call.with_rendered("assistant\n<think>\n\n</think>\n\n").params.structured_outputs
    assert isinstance(opened, FramedOutputs)
    assert isinstance(possible, FramedOutputs)
    assert opened.frame != possible.frame
    assert none == StructuredOutputsParams(json_object=True)


def test_an_answer_with_a_form_may_still_be_a_call(compiler: GrammarCompiler) -> None:
    form = parse(tools=FUNCTIONS, response_format={"type": "json_object"}).params.structured_outputs
    assert isinstance(form, StructuredOutputsParams)
    grammar = compiler.compile(form)
    assert accepts(grammar, '{"a": 1}')
    assert accepts(grammar, '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')
    assert not accepts(grammar, "Hello")


def test_frames_of_other_schemas_are_other_grammars(compiler: GrammarCompiler) -> None:
    first = or_calls(StructuredOutputsParams(regex="a"), SCHEMAS, is_parallel=True)
    second = or_calls(StructuredOutputsParams(regex="b"), SCHEMAS, is_parallel=True)
    assert accepts(compiler.compile(first), "a")
    assert accepts(compiler.compile(second), "b")
    assert compiler.compile(first) is compiler.compile(first)


@pytest.mark.parametrize(
    "schema", [{"pattern": "(", "type": "string"}, {"uniqueItems": True}, {"$ref": "#/nowhere"}, {"type": "bogus"}]
)
def test_a_demanded_call_with_a_schema_that_cannot_be_enforced_is_refused(
    compiler: GrammarCompiler, schema: dict[str, Any]
) -> None:
    with pytest.raises(RequestError) as refused:
        compiler.compile(forced_calls({"f": {"properties": {"x": schema}}}, form=None, is_parallel=True))
    assert refused.value.parameter == "tools"
    assert str(refused.value).startswith("tools cannot be served: ")


def test_a_form_beside_tools_that_cannot_be_enforced_is_the_forms_fault(compiler: GrammarCompiler) -> None:
    wanted = StructuredOutputsParams(json={"type": "bogus"})
    with pytest.raises(RequestError) as refused:
        compiler.compile(after_thought(or_calls(wanted, SCHEMAS, is_parallel=True), is_open=False))
    assert refused.value.parameter == "response_format"
    assert str(refused.value).startswith("response_format beside tools cannot be served: ")


def test_frames_cannot_be_asked_for() -> None:
    with pytest.raises(RequestError, match="has no field 'frame'"):
        StructuredOutputsParams.from_mapping({"frame": "start: /a/"})


@pytest.mark.parametrize("option", ["tool_call_parser", "reasoning_parser"])
def test_a_server_with_an_unknown_parser_does_not_start(option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} must be one of"):
        ServerOptions(**{option: "pythonic"})
