"""POST /v1/embeddings: its body read whole, and its answer, as numbers or as base64 of little-endian float32."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from octavo.errors import RequestError
from octavo.pooling_params import PoolingParams
from octavo.server.protocol.answers import AnswerHead
from octavo.server.protocol.bodies import EmbeddingBody
from octavo.server.protocol.decoding import read_body
from octavo.server.protocol.limits import check_limit
from octavo.server.protocol.prompts import as_prompt_list, checked_inputs, salted
from octavo.server.protocol.renaming import in_other_words
from octavo.server.protocol.responses import EmbeddingEntry, EmbeddingResponse, PromptTokensDetails, Usage

if TYPE_CHECKING:
    from octavo.frontend.input_processor import EngineInput, Prompt
    from octavo.outputs import RequestOutput
    from octavo.server.protocol.calls import ProtocolContext

_UNSERVED = {
    "normalize": "vLLM has replaced it by use_activation",
    "messages": "conversations are not embedded; write them as one text",
    "truncate_prompt_tokens": "shorten the input; /tokenize counts its tokens",
}
"""Fields that are known, each with the way out."""
_OF_INPUTS = {
    "prompt has": "input has",
    "prompt cannot": "input cannot",
    "shorten the prompt": "shorten the input",
    ", prompt and output together": "",
}
"""What errors about a prompt say of what is embedded."""


@dataclass(frozen=True, slots=True)
class EmbeddingCall:
    """A request for embeddings."""

    params: PoolingParams
    add_special_tokens: bool
    prompts: list[Prompt]
    priority: int
    request_id: str | None
    """The client's own."""
    encoding_format: str
    _model: str
    _context: ProtocolContext

    def checked_inputs(self, prepared: Sequence[EngineInput | RequestError], max_model_len: int) -> list[EngineInput]:
        """Return what the engine has prepared, if all of it can be served. Raises: `RequestError`."""
        del max_model_len  # no room is needed behind a prompt
        with in_other_words(_OF_INPUTS):
            return checked_inputs(prepared, "input")

    def answer(self, request_id: str, created: int) -> EmbeddingAnswer:
        """Return what writes the answer.

        Args:
            request_id: without a prefix.
            created: seconds since the epoch.
        """
        told = self._context.tells_cached_tokens
        head = AnswerHead(f"embd-{request_id}", created, self._model, tells_cached_tokens=told)
        return EmbeddingAnswer(head, self.encoding_format)


def parse_embedding(raw: bytes, context: ProtocolContext) -> EmbeddingCall:
    """Read the body of /v1/embeddings. Raises: `RequestError`, `ApiError`."""
    body = read_body(raw, EmbeddingBody)
    name = context.served_name(body.model)
    for field, way_out in _UNSERVED.items():
        if getattr(body, field) is not None:
            raise RequestError(f"{field} cannot be served: {way_out}.", parameter=field)
    limits = context.limits
    prompts = as_prompt_list(body.input, "input")
    check_limit("input", len(prompts), limits.max_prompts, "prompts")
    check_limit("request_id", len(body.request_id or ""), limits.max_id_chars, "characters")
    return EmbeddingCall(
        params=PoolingParams(use_activation=body.use_activation, dimensions=body.dimensions),
        add_special_tokens=body.add_special_tokens is not False,
        prompts=[salted(prompt, body.cache_salt) for prompt in prompts],
        priority=body.priority or 0,
        request_id=body.request_id,
        encoding_format=body.encoding_format or "float",
        _model=name,
        _context=context,
    )


class EmbeddingAnswer:
    """Implements `WholeAnswer`: there is no stream of it."""

    def __init__(self, head: AnswerHead, encoding_format: str) -> None:
        self._head = head
        self._encoding_format = encoding_format

    def body(self, outputs: Sequence[RequestOutput]) -> bytes:
        """Return the JSON for the finished outputs of all prompts, in their order."""
        num_tokens = sum(len(output.prompt_token_ids or ()) for output in outputs)
        usage = Usage(num_tokens, 0, num_tokens)
        if self._head.tells_cached_tokens:
            usage.prompt_tokens_details = PromptTokensDetails(sum(output.num_cached_tokens or 0 for output in outputs))
        return msgspec.json.encode(
            EmbeddingResponse(
                id=self._head.id,
                created=self._head.created,
                model=self._head.model,
                data=[EmbeddingEntry(index, self._encoded(output)) for index, output in enumerate(outputs)],
                usage=usage,
            )
        )

    def _encoded(self, output: RequestOutput) -> list[float] | str:
        values = output.embedding or []
        if self._encoding_format == "float":
            return values
        return base64.b64encode(np.array(values, "<f4").tobytes()).decode()
