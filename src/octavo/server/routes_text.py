"""Routes about text that need no model: /tokenize, /detokenize."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from fastapi import FastAPI, Request, Response

from octavo.server.http import json_response
from octavo.server.protocol.calls import parse_detokenize, parse_tokenize
from octavo.server.protocol.prompts import checked_token_ids
from octavo.server.protocol.responses import DetokenizeResponse, TokenizeResponse
from octavo.server.request_body import read_json_body

if TYPE_CHECKING:
    from octavo.server.state import ServerState

_encode = msgspec.json.encode


def add_text_routes(app: FastAPI, state: ServerState) -> None:
    """Add the routes."""
    engine, call_off_loop = state.llm.engine, state.llm.call_off_loop
    tokenizer = engine.tokenizer

    @app.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        call = parse_tokenize(await read_json_body(request, state.options), state.context)
        text = await state.render(call.conversation) if call.conversation is not None else call.text or ""

        def answer() -> bytes:
            ids = tokenizer.encode(text, call.add_special_tokens)
            names = [name or "" for name in tokenizer.convert_ids_to_tokens(ids)] if call.return_token_strs else None
            return _encode(TokenizeResponse(len(ids), engine.max_model_len, ids, names))

        return json_response(await call_off_loop(answer))

    @app.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        body = parse_detokenize(await read_json_body(request, state.options), state.context)

        def answer() -> bytes:
            ids = checked_token_ids(body, engine.vocab_size)
            (text,) = tokenizer.backend.decode_batch([ids], skip_special_tokens=False)  # it alone releases the GIL
            return _encode(DetokenizeResponse(text))

        return json_response(await call_off_loop(answer))
