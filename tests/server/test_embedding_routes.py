"""/v1/embeddings: OpenAI's package and plain requests get what `LLM.embed` gives."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from server_process import TINY_LLAMA, ServerProcess

from octavo import LLM, PoolingParams

pytestmark = pytest.mark.filterwarnings("ignore")  # of the package
TEXTS = ["The capital of France", "is Paris.", "A text of some more words than the others have."]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(TINY_LLAMA) as llm:
        yield llm


def embed(llm: LLM, prompts: Any, **params: Any) -> list[list[float]]:
    outputs = llm.embed(prompts, pooling_params=PoolingParams(**params), use_tqdm=False)
    return [output.outputs.embedding for output in outputs]


def openai_client(server: ServerProcess) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)


def test_openai_gets_the_numbers_of_the_offline_engine_through_base64(server: ServerProcess, llm: LLM) -> None:
    with openai_client(server) as client:
        reply = client.embeddings.create(model="tiny", input=TEXTS)  # asks for base64, and decodes it
    assert [entry.embedding for entry in reply.data] == embed(llm, TEXTS)
    assert [entry.index for entry in reply.data] == [0, 1, 2]
    assert reply.object == "list"
    num_tokens = sum(len(llm.get_tokenizer().encode(text)) for text in TEXTS)
    assert (reply.usage.prompt_tokens, reply.usage.total_tokens) == (num_tokens, num_tokens)


def test_openai_gets_the_same_numbers_as_floats(server: ServerProcess, llm: LLM) -> None:
    with openai_client(server) as client:
        reply = client.embeddings.create(model="tiny", input=TEXTS[0], encoding_format="float", dimensions=7)
    (entry,) = reply.data
    assert entry.embedding == embed(llm, TEXTS[0], dimensions=7)[0]
    assert sum(value * value for value in entry.embedding) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("given", [[5, 6, 7], [[5, 6, 7]], [[5, 6, 7], [8]]], ids=str)
def test_inputs_may_be_token_ids(server: ServerProcess, llm: LLM, given: Any) -> None:
    reply = server.client.post("/v1/embeddings", json={"input": given}).json()
    prompts = given if isinstance(given[0], list) else [given]
    assert [entry["embedding"] for entry in reply["data"]] == embed(llm, prompts)


def test_base64_is_little_endian_float32(server: ServerProcess, llm: LLM) -> None:
    body = {"input": "hello", "encoding_format": "base64", "use_activation": False}
    (entry,) = server.client.post("/v1/embeddings", json=body).json()["data"]
    values = np.frombuffer(base64.b64decode(entry["embedding"]), "<f4")
    assert values.tolist() == embed(llm, "hello", use_activation=False)[0]


def test_embedding_and_generating_share_the_server(server: ServerProcess) -> None:
    alone = server.client.post("/v1/embeddings", json={"input": TEXTS}).json()["data"]
    with server.client.stream(
        "POST", "/v1/completions", json={"prompt": "a", "max_tokens": 200, "stream": True, "ignore_eos": True}
    ) as stream:
        chunks = stream.iter_lines()
        next(chunks)
        assert server.client.post("/v1/embeddings", json={"input": TEXTS}).json()["data"] == alone
        assert list(chunks)[-1] in ("", "data: [DONE]")


def test_an_answer_names_the_input_that_is_at_fault(server: ServerProcess) -> None:
    reply = server.client.post("/v1/embeddings", json={"input": ["a", ""]})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["param"], error["message"]) == ("input", "input 1: input cannot be empty.")


def test_a_prompt_of_the_whole_context_is_embedded_and_one_more_token_is_not(server: ServerProcess) -> None:
    assert server.client.post("/v1/embeddings", json={"input": [5] * 512}).status_code == 200
    reply = server.client.post("/v1/embeddings", json={"input": [5] * 513})
    assert reply.status_code == 400
    assert reply.json()["error"]["message"] == (
        "input has 513 tokens, but the maximum context length is 512 tokens; shorten the input, or use a model that "
        "was made for longer texts, or extend this one's rope scaling with hf_overrides."
    )


def test_the_answer_is_described(server: ServerProcess) -> None:
    paths = server.client.get("/openapi.json").json()["paths"]
    assert paths["/v1/embeddings"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
