"""The route that embeds: /v1/embeddings."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response

from octavo.server.answering import GenerationResponse
from octavo.server.http import request_id
from octavo.server.protocol.embeddings import parse_embedding
from octavo.server.request_body import read_json_body

if TYPE_CHECKING:
    from octavo.server.state import ServerState

logger = logging.getLogger("octavo.server")


def add_embedding_routes(app: FastAPI, state: ServerState) -> None:
    """Add the route."""

    @app.post("/v1/embeddings")
    async def embed(request: Request) -> Response:
        llm = state.llm
        llm.check_admission(1)  # before it costs anything
        call = parse_embedding(await read_json_body(request, state.options), state.context)
        prepared = await llm.prepare(call.prompts, call.params, add_special_tokens=call.add_special_tokens)
        inputs = call.checked_inputs(prepared, llm.engine.max_model_len)
        if state.options.enable_log_requests:
            num_tokens = sum(len(entry.prompt_token_ids) for entry in inputs)
            logger.info("inputs=%d tokens=%d dimensions=%s", len(inputs), num_tokens, call.params.dimensions)
        own_id = call.request_id or request_id(request.scope)
        start = partial(llm.start, inputs, own_id, priority=call.priority, timeout=state.options.request_timeout)
        return GenerationResponse(start, call.answer(own_id, int(time.time())))
