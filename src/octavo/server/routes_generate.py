"""Routes of OpenAI's that generate: /v1/completions, /v1/chat/completions and /v1/responses; and how any route does."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response

from octavo.server.answering import GenerationResponse, StreamResponse
from octavo.server.http import request_id
from octavo.server.protocol.calls import parse_chat, parse_completion
from octavo.server.protocol.renaming import in_other_words
from octavo.server.request_body import read_json_body
from octavo.server.responses_api.calls import NAMES, parse_response

if TYPE_CHECKING:
    from octavo.server.protocol.calls import Call, ProtocolContext
    from octavo.server.state import ServerState

logger = logging.getLogger("octavo.server")


def add_generation_routes(app: FastAPI, state: ServerState) -> None:
    """Add the routes."""

    @app.post("/v1/completions")
    async def complete(request: Request) -> Response:
        return await generate(request, state, parse_completion)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await generate(request, state, parse_chat)

    @app.post("/v1/responses")
    async def respond(request: Request) -> Response:
        with in_other_words(NAMES):
            return await generate(request, state, parse_response)


async def generate(
    request: Request, state: ServerState, parse: Callable[[bytes, ProtocolContext], Call]
) -> GenerationResponse:
    """Read and check a request; the response runs it."""
    llm = state.llm
    llm.check_admission(1)  # before it costs anything
    call = parse(await read_json_body(request, state.options), state.context)
    if call.conversation is not None:
        call = call.with_rendered(await state.render(call.conversation))
    prepared = await llm.prepare(call.prompts, call.params, add_special_tokens=call.add_special_tokens)
    inputs = call.checked_inputs(prepared, llm.engine.max_model_len)
    if state.options.enable_log_requests:
        num_tokens = sum(len(entry.prompt_token_ids) for entry in inputs)
        wanted = (call.params.n, call.params.max_tokens, call.stream)
        logger.info("prompts=%d tokens=%d n=%d max_tokens=%s stream=%s", len(inputs), num_tokens, *wanted)
    own_id = call.request_id or request_id(request.scope)
    answer = call.answer(own_id, int(time.time()))
    start = partial(llm.start, inputs, own_id, priority=call.priority, timeout=state.options.request_timeout)
    return (StreamResponse if call.stream else GenerationResponse)(start, answer)
