"""Routes of Anthropic's API: /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from fastapi import FastAPI, Request, Response

from octavo.server.error_bodies import MESSAGES_PATH
from octavo.server.http import json_response
from octavo.server.messages_api.calls import NAMES, parse_count, parse_messages
from octavo.server.messages_api.objects import TokenCount
from octavo.server.protocol.renaming import in_other_words
from octavo.server.request_body import read_json_body
from octavo.server.routes_generate import generate

if TYPE_CHECKING:
    from octavo.server.state import ServerState


def add_messages_routes(app: FastAPI, state: ServerState) -> None:
    """Add the routes."""
    call_off_loop, tokenizer = state.llm.call_off_loop, state.llm.engine.tokenizer

    @app.post(MESSAGES_PATH)
    async def messages(request: Request) -> Response:
        with in_other_words(NAMES):
            return await generate(request, state, parse_messages)

    @app.post(f"{MESSAGES_PATH}/count_tokens")
    async def count_tokens(request: Request) -> Response:
        raw = await read_json_body(request, state.options)
        with in_other_words(NAMES):
            text = await state.render(parse_count(raw, state.context))
        ids = await call_off_loop(lambda: tokenizer.encode(text, False))
        return json_response(msgspec.json.encode(TokenCount(len(ids))))
