"""OpenAI's and Anthropic's own packages on /v1/responses and /v1/messages: text, streams, forms, tools, thoughts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from server_process import ServerProcess, serve_fake

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages, about each other
KEY = "any"
TEMPLATE = '{# <tool_call>{"name": tools </think> #}{{ messages[-1].content }}'
"""Makes the echo server read the tool calls and thoughts of what it was told to say."""
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
SAID = f"<think>Which one?</think>I look.\n{CALL}"


@pytest.fixture(scope="module")
def talker() -> Iterator[ServerProcess]:
    """Says what it is told to, thoughts and tool calls included."""
    with serve_fake("--chat-template", TEMPLATE, "--served-model-name", "tiny") as process:
        yield process


def openai_client(server: ServerProcess) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)


def anthropic_client(server: ServerProcess) -> Any:
    from anthropic import Anthropic

    return Anthropic(base_url=server.url, api_key=KEY, max_retries=0)


# ---------------------------------------------------------------- openai

TOOL: Any = {"type": "function", "name": "weather", "description": "Tells it.", "parameters": PARAMETERS}
WITH_TOOL: dict[str, Any] = {"model": "tiny", "tools": [TOOL], "temperature": 0, "max_output_tokens": 300}


def test_openai_gets_a_response(server: ServerProcess) -> None:
    with openai_client(server) as client:
        response = client.responses.create(model="tiny", input="hi", max_output_tokens=8, temperature=0, store=True)
    assert response.output_text == server.chat("hi", max_tokens=8).json()["choices"][0]["message"]["content"]
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage.output_tokens == 8
    assert response.usage.input_tokens_details.cached_tokens >= 0


def test_openai_streams_a_response(server: ServerProcess) -> None:
    ask: dict[str, Any] = {"model": "tiny", "input": "hi", "max_output_tokens": 8, "temperature": 0}
    with openai_client(server) as client:
        expected = client.responses.create(**ask)
        events = list(client.responses.create(**ask, stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == expected.output_text == events[-1].response.output_text
    assert events[-1].type == "response.incomplete"
    assert events[0].type == "response.created"
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_openai_parses_a_response_into_a_model(server: ServerProcess) -> None:
    from pydantic import BaseModel, Field

    class Person(BaseModel):
        name: str = Field(max_length=8)
        age: int = Field(ge=0, le=99)

    with openai_client(server) as client:
        response = client.responses.parse(
            model="tiny", input="a person", text_format=Person, max_output_tokens=100, extra_body={"seed": 1}
        )
    assert isinstance(response.output_parsed, Person)
    assert response.text.format.type == "json_schema"


def test_openai_is_told_a_call_that_must_be_made(server: ServerProcess) -> None:
    ask: dict[str, Any] = {"model": "tiny", "input": "hi", "max_output_tokens": 60, "temperature": 0}
    with openai_client(server) as client:
        for choice in ("required", {"type": "function", "name": "weather"}):
            response = client.responses.create(**ask, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False)
            (call,) = response.output
            assert (call.type, call.name) == ("function_call", "weather")
            assert set(json.loads(call.arguments)) == {"city"}


def test_openai_loops_through_thoughts_and_tools(talker: ServerProcess) -> None:
    with openai_client(talker) as client:
        history: list[Any] = [{"role": "user", "content": SAID}]
        response = client.responses.create(**WITH_TOOL, input=history)
        thought, message, call = response.output
        assert thought.content[0].text == "Which one?"
        assert message.content[0].text.strip() == "I look."
        assert json.loads(call.arguments) == {"city": "Rome"}
        assert response.usage.output_tokens_details.reasoning_tokens == len("<think>Which one?")
        history += response.output
        history.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
        assert client.responses.create(**WITH_TOOL, input=history).output_text == "sunny"


def test_openai_streams_thoughts_and_calls(talker: ServerProcess) -> None:
    with openai_client(talker) as client:
        expected = client.responses.create(**WITH_TOOL, input=SAID)
        with client.responses.stream(**WITH_TOOL, input=SAID) as stream:
            events = list(stream)
            final = stream.get_final_response()
    arguments = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(arguments) == expected.output[2].arguments
    thought = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
    assert thought == expected.output[0].content[0].text
    assert [item.type for item in final.output] == [item.type for item in expected.output]


def test_openai_raises_what_it_should(server: ServerProcess) -> None:
    import openai

    with openai_client(server) as client:
        with pytest.raises(openai.BadRequestError, match="nothing is stored") as bad:
            client.responses.create(model="tiny", input="hi", previous_response_id="resp_1")
        assert bad.value.param == "previous_response_id"
        with pytest.raises(openai.BadRequestError, match="no tools of its own"):
            client.responses.create(model="tiny", input="hi", tools=[{"type": "web_search"}])
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model="gpt-5", input="hi")


# ---------------------------------------------------------------- anthropic

HI: list[Any] = [{"role": "user", "content": "hi"}]
WEATHER: Any = {"name": "weather", "description": "Tells it.", "input_schema": PARAMETERS}


def test_anthropic_gets_a_message(server: ServerProcess) -> None:
    with anthropic_client(server) as client:
        message = client.messages.create(
            model="tiny", max_tokens=8, messages=HI, system="Be brief.", extra_body={"temperature": 0}
        )
    (block,) = message.content
    assert (block.type, message.stop_reason, message.role) == ("text", "max_tokens", "assistant")
    assert block.text
    assert message.usage.output_tokens == 8


def test_anthropic_streams_a_message(server: ServerProcess) -> None:
    ask: dict[str, Any] = {"model": "tiny", "max_tokens": 8, "messages": HI, "extra_body": {"temperature": 0}}
    with anthropic_client(server) as client:
        expected = client.messages.create(**ask)
        with client.messages.stream(**ask) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        kinds = [event.type for event in client.messages.create(**ask, stream=True)]
    assert text == expected.content[0].text == final.content[0].text
    assert final.stop_reason == expected.stop_reason
    assert final.usage.output_tokens == 8
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


def test_anthropic_counts_tokens(server: ServerProcess) -> None:
    with anthropic_client(server) as client:
        counted = client.messages.count_tokens(model="tiny", messages=HI, system="Be brief.")
        usage = client.messages.create(model="tiny", max_tokens=1, messages=HI, system="Be brief.").usage
        tools = client.messages.count_tokens(model="tiny", messages=HI, tools=[WEATHER])
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    assert tools.input_tokens > 0


def test_anthropic_is_told_a_call_that_must_be_made(server: ServerProcess) -> None:
    with anthropic_client(server) as client:
        for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
            one = {**choice, "disable_parallel_tool_use": True}
            message = client.messages.create(
                model="tiny", max_tokens=60, messages=HI, tools=[WEATHER], tool_choice=one, extra_body={"seed": 1}
            )
            (call,) = message.content
            assert (call.type, call.name, set(call.input)) == ("tool_use", "weather", {"city"})
            assert message.stop_reason == "tool_use"


def test_anthropic_loops_through_thoughts_and_tools(talker: ServerProcess) -> None:
    with anthropic_client(talker) as client:
        history: list[Any] = [{"role": "user", "content": SAID}]
        ask: dict[str, Any] = {"model": "tiny", "max_tokens": 300, "tools": [WEATHER], "extra_body": {"temperature": 0}}
        message = client.messages.create(**ask, messages=history)
        thought, text, call = message.content
        assert (thought.type, thought.thinking) == ("thinking", "Which one?")
        assert text.text.strip() == "I look."
        assert call.input == {"city": "Rome"}
        assert message.stop_reason == "tool_use"
        history.append({"role": "assistant", "content": message.content})
        history.append(
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]}
        )
        assert client.messages.create(**ask, messages=history).content[0].text == "sunny"


def test_anthropic_gets_as_much_of_a_call_that_is_cut_whole_as_streamed(talker: ServerProcess) -> None:
    call = (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": [1, 2], "of": "today"}}\n</tool_call>'
    )
    with anthropic_client(talker) as client:
        ask: dict[str, Any] = {
            "model": "tiny", "max_tokens": call.index("day\""), "tools": [WEATHER],
            "messages": [{"role": "user", "content": call}], "extra_body": {"temperature": 0, "request_id": "1"},
        }  # fmt: skip
        message = client.messages.create(**ask)
        with client.messages.stream(**ask) as stream:
            streamed = stream.get_final_message()
    assert message.stop_reason == streamed.stop_reason == "max_tokens"
    assert [block.input for block in message.content] == [{"city": "Rome", "days": [1, 2]}]
    assert [block.to_dict() for block in streamed.content] == [block.to_dict() for block in message.content]


def test_anthropic_streams_thoughts_and_calls(talker: ServerProcess) -> None:
    ask: dict[str, Any] = {
        "model": "tiny",
        "max_tokens": 300,
        "tools": [WEATHER],
        "extra_body": {"temperature": 0, "request_id": "1"},
    }
    messages: list[Any] = [{"role": "user", "content": SAID}]
    with anthropic_client(talker) as client:
        expected = client.messages.create(**ask, messages=messages)
        with client.messages.stream(**ask, messages=messages) as stream:
            pieces = [event.partial_json for event in stream if event.type == "input_json"]
            final = stream.get_final_message()
    assert json.loads("".join(pieces)) == {"city": "Rome"}
    assert [without_id(block) for block in final.content] == [without_id(block) for block in expected.content]
    assert final.stop_reason == "tool_use"


def without_id(block: Any) -> dict[str, Any]:
    """Return a block without the id of a call, which is another in every answer."""
    return {name: value for name, value in block.to_dict().items() if name != "id"}


def test_anthropic_parses_a_message_into_a_model(server: ServerProcess) -> None:
    from pydantic import BaseModel

    class Place(BaseModel):
        kind: bool

    with anthropic_client(server) as client:
        message = client.messages.parse(
            model="tiny", max_tokens=60, messages=HI, output_format=Place, extra_body={"seed": 1}
        )
    assert isinstance(message.parsed_output, Place)


def test_anthropic_raises_what_it_should(server: ServerProcess) -> None:
    import anthropic

    with anthropic_client(server) as client:
        with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
            client.messages.create(model="tiny", max_tokens=0, messages=HI)
        with pytest.raises(anthropic.NotFoundError, match="does not exist"):
            client.messages.create(model="claude-3", max_tokens=5, messages=HI)


def test_anthropic_async_streams_at_the_same_time(server: ServerProcess) -> None:
    from anthropic import AsyncAnthropic

    async def say(client: AsyncAnthropic) -> str:
        async with client.messages.stream(
            model="tiny", max_tokens=8, messages=HI, extra_body={"temperature": 0}
        ) as stream:
            return "".join([text async for text in stream.text_stream])

    async def say_all() -> list[str]:
        async with AsyncAnthropic(base_url=server.url, api_key=KEY) as client:
            return await asyncio.gather(*(say(client) for _ in range(5)))

    expected = server.chat("hi", max_tokens=8).json()["choices"][0]["message"]["content"]
    assert asyncio.run(say_all()) == [expected] * 5


# ---------------------------------------------------------------- packages on top of both


def test_langchain_speaks_responses(server: ServerProcess) -> None:
    from langchain_openai import ChatOpenAI

    url: Any = f"{server.url}/v1"
    chat = ChatOpenAI(base_url=url, api_key=KEY, model="tiny", max_tokens=8, temperature=0, use_responses_api=True)  # type: ignore[call-arg, arg-type]
    reply = chat.invoke("hi")
    assert reply.text == server.chat("hi", max_tokens=8).json()["choices"][0]["message"]["content"]
    assert reply.usage_metadata is not None
    assert reply.usage_metadata["output_tokens"] == 8
    assert "".join(str(chunk.text) for chunk in chat.stream("hi")) == reply.text


def test_pydantic_ai_runs_an_agent_on_responses(talker: ServerProcess) -> None:
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    asked: list[str] = []

    def weather(city: str) -> str:
        asked.append(city)
        return "sunny"

    async def run() -> Any:
        async with AsyncOpenAI(base_url=f"{talker.url}/v1", api_key=KEY) as client:
            model = OpenAIResponsesModel("tiny", provider=OpenAIProvider(openai_client=client))
            settings: Any = {"max_tokens": 300, "temperature": 0}
            agent = Agent(model, instructions="Be brief.", tools=[weather], model_settings=settings)
            return (await agent.run(SAID)).output

    assert asyncio.run(run()) == "sunny"
    assert asked == ["Rome"]


def test_instructor_reads_a_model_from_a_message(server: ServerProcess) -> None:
    import instructor
    from pydantic import BaseModel

    class Answer(BaseModel, extra="forbid"):
        is_good: bool

    with anthropic_client(server) as anthropic:
        answer = instructor.from_anthropic(anthropic).create(
            model="tiny",
            messages=HI,
            response_model=Answer,
            max_tokens=60,
            max_retries=0,
            extra_body={"temperature": 0},
        )
    assert isinstance(answer, Answer)
