"""Programs that call tools work unchanged: the real packages against real servers."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field
from server_process import TINY_LLAMA, ServerProcess, serve, serve_fake

sys.path.insert(0, str(Path(__file__).parent / "parsers"))

from published_outputs import PUBLISHED, TOOLS

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages, about each other
TEMPLATE = str(Path(__file__).parent / "tool_template.jinja")
SAYS_AGAIN = '{# <tool_call>{"name" </think> #}{{ messages[-1].content }}'
"""A template for the model that says its prompt again."""
ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {name: {"type": "integer", "minimum": 0, "maximum": 99} for name in "ab"},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
NAMED: Any = {"type": "function", "function": {"name": "add"}}
FUNCTIONS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in TOOLS.items()
]
QUESTION: list[Any] = [{"role": "user", "content": "What is 2 + 3?"}]


class Person(BaseModel):
    """Somebody."""

    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=99)
    kind: Literal["cat", "dog"]


@pytest.fixture(scope="module")
def tool_server() -> Iterator[ServerProcess]:
    """A tiny llama with random weights, and a chat template that knows tools."""
    with serve(TINY_LLAMA, "--served-model-name", "tiny", "--chat-template", TEMPLATE) as process:
        yield process


@pytest.fixture(scope="module")
def echo_tool_server() -> Iterator[ServerProcess]:
    """A model that says the last message again."""
    with serve_fake("--chat-template", SAYS_AGAIN) as process:
        yield process


def openai_client(server: ServerProcess) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)


def check_sum(call: Any) -> dict[str, int]:
    arguments: dict[str, int] = json.loads(call.function.arguments)
    assert call.function.name == "add"
    jsonschema.validate(arguments, ADD["function"]["parameters"])
    return arguments


@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), (NAMED, "stop")], ids=["required", "named"])
def test_openai_goes_round_a_tool_loop(tool_server: ServerProcess, choice: Any, reason: str) -> None:
    messages = list(QUESTION)
    with openai_client(tool_server) as client:
        asked = {"model": "tiny", "tools": [ADD], "max_tokens": 120, "temperature": 0, "parallel_tool_calls": False}
        reply = client.chat.completions.create(messages=messages, tool_choice=choice, **asked).choices[0]
        assert reply.finish_reason == reason
        assert reply.message.content is None
        (call,) = reply.message.tool_calls
        result = sum(check_sum(call).values())
        messages += [reply.message, {"role": "tool", "tool_call_id": call.id, "content": str(result)}]
        last = client.chat.completions.create(messages=messages, **{**asked, "max_tokens": 8}).choices[0]
    assert last.message.tool_calls is None
    assert last.message.content


def test_the_template_writes_calls_and_results_of_earlier_turns(tool_server: ServerProcess) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
    messages = [
        *QUESTION,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
    ]
    asked = {"messages": messages, "tools": [ADD], "max_tokens": 1, "return_token_ids": True}
    ids = tool_server.client.post("/v1/chat/completions", json=asked).json()["prompt_token_ids"]
    text = tool_server.client.post("/detokenize", json={"tokens": ids}).json()["prompt"]
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>' in text
    assert "<tools>" in text
    assert "tool\n5" in text


def test_openai_streams_demanded_calls(tool_server: ServerProcess) -> None:
    asked = {"model": "tiny", "messages": QUESTION, "tools": [ADD], "tool_choice": "required", "max_tokens": 150}
    with openai_client(tool_server) as client:
        whole = client.chat.completions.create(**asked, temperature=0).choices[0]
        chunks = list(client.chat.completions.create(**asked, temperature=0, stream=True))
        assert len([chunk for chunk in chunks if chunk.choices[0].delta.tool_calls]) > 3
    told: dict[int, Any] = {}
    for piece in (piece for chunk in chunks for piece in chunk.choices[0].delta.tool_calls or ()):
        told.setdefault(piece.index, [piece.function.name, ""])[1] += piece.function.arguments
    calls = [[call.function.name, call.function.arguments] for call in whole.message.tool_calls]
    assert list(told.values()) == calls


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "whole"])
def test_openai_parses_calls_into_models(tool_server: ServerProcess, streams: bool) -> None:
    import openai

    asked = {
        "model": "tiny",
        "messages": QUESTION,
        "tools": [openai.pydantic_function_tool(Person)],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 150,
        "temperature": 0,
    }
    with openai_client(tool_server) as client:
        if streams:
            with client.chat.completions.stream(**asked) as events:
                assert any(event.type == "tool_calls.function.arguments.delta" for event in events)
                reply = events.get_final_completion()
        else:
            reply = client.chat.completions.parse(**asked)
    (call,) = reply.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Person)


def test_langchain_binds_tools(tool_server: ServerProcess) -> None:
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=f"{tool_server.url}/v1", api_key="any", model="tiny", max_tokens=150, temperature=0)  # type: ignore[call-arg, arg-type]
    bound = chat.bind_tools([ADD], tool_choice="required", parallel_tool_calls=False)
    (call,) = bound.invoke("What is 2 + 3?").tool_calls
    assert call["name"] == "add"
    jsonschema.validate(call["args"], ADD["function"]["parameters"])
    streamed = None
    for chunk in bound.stream("What is 2 + 3?"):
        streamed = chunk if streamed is None else streamed + chunk
    assert [entry["args"] for entry in streamed.tool_calls] == [call["args"]]


def test_a_model_that_chooses_to_call_is_made_to_by_a_grammar(tool_server: ServerProcess) -> None:
    """Weights that are random choose nothing; a grammar writes what such a model would, and the server reads it."""
    form = r'Well\.\n<tool_call>\n\{"name": "add", "arguments": \{"a": [0-9], "b": [0-9]\}\}\n</tool_call>'
    asked = {"messages": QUESTION, "tools": [ADD], "max_tokens": 200, "structured_outputs": {"regex": form}}
    choice = tool_server.client.post("/v1/chat/completions", json=asked).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Well."
    (call,) = choice["message"]["tool_calls"]
    jsonschema.validate(json.loads(call["function"]["arguments"]), ADD["function"]["parameters"])


@pytest.mark.parametrize("name", ["hermes, two behind text", "hermes, behind a thought"])
def test_openai_reads_calls_and_thoughts_of_a_model_that_chooses(echo_tool_server: ServerProcess, name: str) -> None:
    output = PUBLISHED[name]
    asked: dict[str, Any] = {
        "model": "fake",
        "messages": [{"role": "user", "content": output.text}],
        "tools": FUNCTIONS,
    }
    with openai_client(echo_tool_server) as client:
        reply = client.chat.completions.create(**asked, max_tokens=500).choices[0]
        chunks = list(client.chat.completions.create(**asked, max_tokens=500, stream=True))
    message = reply.message
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]
    assert (calls, message.content or "") == (output.calls, output.content)
    assert getattr(message, "reasoning_content", "") == getattr(message, "reasoning", "") == output.reasoning
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == output.content
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == output.reasoning
    pieces = [piece for delta in deltas for piece in delta.tool_calls or ()]
    ids = [piece.id for piece in pieces if piece.id]
    assert ids
    assert len(set(ids)) == len(ids) == len(output.calls)
    assert chunks[-1].choices[0].finish_reason == reply.finish_reason == "tool_calls"


def test_vllms_flags_choose_the_parsers() -> None:
    template = "{{ messages[-1].content }}"
    flags = ("--enable-auto-tool-choice", "--tool-call-parser", "mistral", "--reasoning-parser", "deepseek_r1")
    text = "<think>Hm.</think>" + PUBLISHED["mistral, names"].text
    with serve_fake("--chat-template", template, *flags) as server:
        message = server.chat(text, tools=FUNCTIONS, max_tokens=500).json()["choices"][0]["message"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["get_weather", "now"]
    assert message["reasoning"] == "Hm."


def test_parsers_can_be_switched_off() -> None:
    text = PUBLISHED["hermes, behind a thought"].text
    flags = ("--tool-call-parser", "none", "--reasoning-parser", "none")
    with serve_fake("--chat-template", SAYS_AGAIN, *flags) as server:
        message = server.chat(text, tools=FUNCTIONS, max_tokens=500).json()["choices"][0]["message"]
    assert message["content"] == text
    assert "tool_calls" not in message


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"])
def test_instructor_gets_models(tool_server: ServerProcess, mode: str) -> None:
    import instructor

    with openai_client(tool_server) as client:
        person = instructor.from_openai(client, mode=instructor.Mode[mode]).chat.completions.create(
            model="tiny", messages=QUESTION, response_model=Person, max_tokens=150, temperature=0, max_retries=0
        )
    assert isinstance(person, Person)


def run_agent(
    server: ServerProcess,
    prompt: str,
    *tools: Callable[[str], str],
    output_type: Any = str,
    streams: bool = False,
) -> Any:
    """Return what an agent of pydantic-ai comes to."""
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def run() -> Any:
        name = server.client.get("/v1/models").json()["data"][0]["id"]
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
            agent: Any = Agent(
                OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client)),
                output_type=output_type,
                tools=tools,
                model_settings={"max_tokens": 200, "temperature": 0, "parallel_tool_calls": False},
            )
            if not streams:
                return (await agent.run(prompt)).output
            async with agent.run_stream(prompt) as events:
                return await events.get_output()

    return asyncio.run(run())


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "whole"])
def test_pydantic_ai_runs_an_agent_whose_answer_is_a_call(tool_server: ServerProcess, streams: bool) -> None:
    assert isinstance(run_agent(tool_server, "Who?", output_type=Person, streams=streams), Person)


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "whole"])
def test_pydantic_ai_calls_a_tool_and_goes_on(echo_tool_server: ServerProcess, streams: bool) -> None:
    asked: list[str] = []

    def get_weather(city: str) -> str:
        """Tell the weather."""
        asked.append(city)
        return "It rains."

    said = run_agent(echo_tool_server, PUBLISHED["hermes, one"].text, get_weather, streams=streams)
    assert said == "It rains."
    assert asked == ["Paris"]
