"""Programs made for OpenAI's API work unchanged: the real packages against a real server."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field
from server_process import TINY_LLAMA, ServerProcess

from octavo import EngineConfig
from octavo.frontend.resolve import load_tokenizer, resolve

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages, about each other
MESSAGES: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say something."}]
KEY = "any"


@pytest.fixture
def answer(server: ServerProcess) -> str:
    """What the server says to `MESSAGES`, in eight tokens."""
    reply = server.client.post(
        "/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 8, "temperature": 0, "model": "tiny"}
    )
    text: str = reply.json()["choices"][0]["message"]["content"]
    assert text
    return text


def openai_client(server: ServerProcess) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)


def test_openai_lists_the_models(server: ServerProcess) -> None:
    with openai_client(server) as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        assert client.models.retrieve("tiny").owned_by == "octavo"


def test_openai_chats(server: ServerProcess, answer: str) -> None:
    with openai_client(server) as client:
        reply = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=8, temperature=0)
    assert reply.choices[0].message.content == answer
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 8
    assert reply.usage.prompt_tokens_details.cached_tokens >= 0
    assert reply.id.startswith("chatcmpl-")


def test_openai_streams_a_chat(server: ServerProcess, answer: str) -> None:
    with openai_client(server) as client:
        chunks = list(
            client.chat.completions.create(
                model="tiny",
                messages=MESSAGES,
                max_completion_tokens=8,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == answer
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 8


def test_openai_completes_with_logprobs(server: ServerProcess) -> None:
    with openai_client(server) as client:
        reply = client.completions.create(model="tiny", prompt=["One", "Two"], max_tokens=4, logprobs=2, temperature=0)
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert all(len(choice.logprobs.tokens) == 4 for choice in reply.choices)
    assert "".join(reply.choices[0].logprobs.tokens) == reply.choices[0].text
    assert reply.usage.completion_tokens == 8


def test_openai_reads_chat_logprobs(server: ServerProcess, answer: str) -> None:
    with openai_client(server) as client:
        reply = client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=8, temperature=0, logprobs=True, top_logprobs=3
        )
    content = reply.choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in content).decode("utf-8", "replace") == answer
    assert all(len(entry.top_logprobs) == 3 for entry in content)
    assert all(entry.top_logprobs[0].logprob == entry.logprob for entry in content)


class Ticket(BaseModel):
    """What to do about a complaint."""

    kind: Literal["refund", "repair"]
    urgent: bool
    places: list[Literal["front", "back"]] = Field(min_length=1, max_length=2, description="Where it is broken")
    days: int | None = Field(ge=0, le=9)


@functools.cache
def no_spaces() -> dict[str, int]:
    """Keeps a model that knows nothing from filling an answer with the whitespace that JSON allows."""
    config = EngineConfig(TINY_LLAMA)
    tokenizer = load_tokenizer(config, resolve(config).model)
    return {str(token_id): -100 for token_id in range(2048) if tokenizer.id_to_bytes(token_id).isspace()}


def test_openai_parses_an_answer_into_a_model(server: ServerProcess) -> None:
    with openai_client(server) as client:
        for seed in range(3):
            reply = client.chat.completions.parse(
                model="tiny",
                messages=MESSAGES,
                response_format=Ticket,
                max_tokens=200,
                seed=seed,
                logit_bias=no_spaces(),
            )
            assert isinstance(reply.choices[0].message.parsed, Ticket)


def test_openai_parses_a_streamed_answer_into_the_same_model(server: ServerProcess) -> None:
    asked: Any = {"model": "tiny", "messages": MESSAGES, "response_format": Ticket, "max_tokens": 200, "seed": 1}
    asked["logit_bias"] = no_spaces()
    with openai_client(server) as client:
        whole = client.chat.completions.parse(**asked)
        with client.chat.completions.stream(**asked) as stream:
            streamed = stream.get_final_completion()
    assert streamed.choices[0].message.parsed == whole.choices[0].message.parsed


def test_openai_says_so_where_a_parsed_answer_is_cut(server: ServerProcess) -> None:
    from openai import LengthFinishReasonError

    with openai_client(server) as client, pytest.raises(LengthFinishReasonError):
        client.chat.completions.parse(model="tiny", messages=MESSAGES, response_format=Ticket, max_tokens=3)


def test_openai_passes_the_extras_on(server: ServerProcess) -> None:
    with openai_client(server) as client:
        reply = client.completions.create(
            model="tiny",
            prompt="One",
            max_tokens=5,
            extra_body={"top_k": 1, "ignore_eos": True, "return_token_ids": True, "min_tokens": 5},
        )
    assert len(reply.choices[0].token_ids) == 5
    assert reply.choices[0].prompt_token_ids


def test_openai_raises_what_it_should(server: ServerProcess) -> None:
    import openai

    with openai_client(server) as client:
        with pytest.raises(openai.BadRequestError, match="temperature") as bad:
            client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=5)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError, match="dimensions is 65") as bad:
            client.embeddings.create(model="tiny", input="x", dimensions=65)
        assert bad.value.param == "dimensions"


def test_openai_async_streams_at_the_same_time(server: ServerProcess, answer: str) -> None:
    from openai import AsyncOpenAI

    async def chat(client: AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=8, temperature=0, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def chat_all() -> list[str]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY) as client:
            return await asyncio.gather(*(chat(client) for _ in range(5)))

    assert asyncio.run(chat_all()) == [answer] * 5


def test_litellm_chats_and_streams(server: ServerProcess, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the internet when it is imported
    import litellm

    call = {"model": "openai/tiny", "api_base": f"{server.url}/v1", "api_key": KEY, "messages": MESSAGES}
    reply = litellm.completion(**call, max_tokens=8, temperature=0)
    assert reply.choices[0].message.content == answer
    chunks = litellm.completion(**call, max_tokens=8, temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer


def test_langchain_chats_and_streams(server: ServerProcess, answer: str) -> None:
    from langchain_openai import ChatOpenAI, OpenAI

    chat = ChatOpenAI(base_url=f"{server.url}/v1", api_key=KEY, model="tiny", max_tokens=8, temperature=0)  # type: ignore[call-arg, arg-type]
    messages = [(message["role"], message["content"]) for message in MESSAGES]
    reply = chat.invoke(messages)
    assert reply.content == answer
    assert reply.usage_metadata is not None
    assert reply.usage_metadata["output_tokens"] == 8
    assert "".join(str(chunk.content) for chunk in chat.stream(messages)) == answer
    complete = OpenAI(base_url=f"{server.url}/v1", api_key=KEY, model="tiny", max_tokens=8, temperature=0)  # type: ignore[call-arg, arg-type]
    assert complete.invoke("One") == server.complete("One", max_tokens=8).json()["choices"][0]["text"]


@pytest.mark.parametrize("streams", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["stream", "whole"])
def test_llm_talks_to_it(server: ServerProcess, answer: str, tmp_path: Path, streams: bool) -> None:
    models = [{"model_id": "mine", "model_name": "tiny", "api_base": f"{server.url}/v1"}]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))
    command = [sys.executable, "-m", "llm", "-m", "mine", "-s", MESSAGES[0]["content"], MESSAGES[1]["content"]]
    command += ["-o", "max_tokens", "8", "-o", "temperature", "0", *([] if streams else ["--no-stream"])]
    done = subprocess.run(
        command,
        env={**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": KEY},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode("utf-8", "replace").strip() == answer.strip()
