"""/tokenize and /detokenize keep their work off the event loop, which serves everybody else meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from test_protocol import make_context

from octavo.server.options import ServerOptions
from octavo.server.routes_text import add_text_routes


class WatchedTokenizer:
    """One id a character. Notes on which threads it works."""

    def __init__(self) -> None:
        self.threads: set[threading.Thread] = set()
        self.backend = self

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        del add_special_tokens
        self.threads.add(threading.current_thread())
        return [ord(letter) for letter in text]

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        self.threads.add(threading.current_thread())
        return [chr(token_id) for token_id in ids]

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        del skip_special_tokens
        return "".join(self.convert_ids_to_tokens(ids))

    def decode_batch(self, sequences: list[list[int]], skip_special_tokens: bool) -> list[str]:
        return [self.decode(ids, skip_special_tokens) for ids in sequences]


class WatchedEngine:
    """Tells its vocabulary's size, which ids are checked against, and notes on which threads it does."""

    max_model_len = 512

    def __init__(self) -> None:
        self.tokenizer = WatchedTokenizer()

    @property
    def vocab_size(self) -> int:
        self.tokenizer.threads.add(threading.current_thread())
        return 256


def post(engine: WatchedEngine, path: str, body: dict[str, Any]) -> dict[str, Any]:
    async def call_off_loop(call: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(call)

    app = FastAPI()
    llm = SimpleNamespace(engine=engine, call_off_loop=call_off_loop)
    state: Any = SimpleNamespace(llm=llm, options=ServerOptions(), context=make_context())
    add_text_routes(app, state)

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.post(path, json=body)

    answer: dict[str, Any] = asyncio.run(send()).json()
    return answer


@pytest.mark.parametrize(
    ("path", "body", "name", "told"),
    [
        ("/tokenize", {"prompt": "hi", "return_token_strs": True}, "token_strs", ["h", "i"]),
        ("/detokenize", {"tokens": [104, 105]}, "prompt", "hi"),
    ],
)
def test_all_work_on_tokens_is_done_by_another_thread(path: str, body: dict[str, Any], name: str, told: Any) -> None:
    engine = WatchedEngine()
    assert post(engine, path, body)[name] == told
    assert engine.tokenizer.threads
    assert threading.main_thread() not in engine.tokenizer.threads
