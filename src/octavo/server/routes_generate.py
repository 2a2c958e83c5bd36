"""Routes that generate: /v1/completions and /v1/chat/completions."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response

from octavo.errors import RequestError
from octavo.server.answering import GenerationResponse
from octavo.server.http import request_id
from octavo.server.protocol.calls import parse_chat, parse_completion
from octavo.server.request_body import read_json_body

if TYPE_CHECKING:
    from octavo.frontend.generation import Generation
    from octavo.frontend.input_processor import EngineInput
    from octavo.server.protocol.calls import Call, ProtocolContext
    from octavo.server.state import ServerState

logger = logging.getLogger("octavo.server")


def add_generation_routes(app: FastAPI, state: ServerState) -> None:
    """Add the routes."""

    @app.post("/v1/completions")
    async def complete(request: Request) -> Response:
        return await _generate(request, state, parse_completion)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await _generate(request, state, parse_chat)


async def _generate(
    request: Request, state: ServerState, parse: Callable[[bytes, ProtocolContext], Call]
) -> GenerationResponse:
    """Read and check a request; the response runs it."""
    llm = state.llm
    llm.check_admission(1)  # before it costs anything
    call = parse(await read_json_body(request, state.options), state.context)
    prompts = call.prompts
    if call.conversation is not None:
        prompts = call.with_rendered(await state.render(call.conversation))
    prepared = await llm.prepare(prompts, call.params, add_special_tokens=call.add_special_tokens)
    inputs = [_checked(index, entry, len(prepared)) for index, entry in enumerate(prepared)]
    for entry in inputs:
        call.check_room(len(entry.prompt_token_ids), llm.engine.max_model_len)
    if state.options.enable_log_requests:
        num_tokens = sum(len(entry.prompt_token_ids) for entry in inputs)
        wanted = (call.params.n, call.params.max_tokens, call.stream)
        logger.info("prompts=%d tokens=%d n=%d max_tokens=%s stream=%s", len(inputs), num_tokens, *wanted)
    own_id = call.request_id or request_id(request.scope)
    answer = call.answer(own_id, int(time.time()))

    def start() -> Generation:
        return llm.start(inputs, own_id, priority=call.priority, timeout=state.options.request_timeout)

    return GenerationResponse(start, answer, is_stream=call.stream)


def _checked(index: int, entry: EngineInput | RequestError, num_prompts: int) -> EngineInput:
    """Return a prepared prompt. Raises: `RequestError`, which names the prompt where there are several."""
    if isinstance(entry, RequestError):
        message = str(entry) if num_prompts == 1 else f"prompt {index}: {entry}"
        raise RequestError(message, parameter=entry.parameter, value=entry.value)
    return entry
