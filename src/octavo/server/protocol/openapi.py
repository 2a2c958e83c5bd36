"""/openapi.json: every path with the schemas of its bodies, made from the structs that read and write them."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.server.messages_api import bodies as messages_bodies
from octavo.server.messages_api import objects as messages_objects
from octavo.server.protocol import bodies, responses
from octavo.server.protocol.refusals import unserved_fields
from octavo.server.responses_api import bodies as response_bodies
from octavo.server.responses_api import objects as response_objects

_REFERENCE = "#/components/schemas/{name}"
_BODIES = (
    bodies.CompletionBody,
    bodies.ChatBody,
    bodies.EmbeddingBody,
    bodies.TokenizeBody,
    bodies.DetokenizeBody,
    response_bodies.ResponseBody,
    messages_bodies.MessagesBody,
    messages_bodies.PromptBody,
)
_ANSWERS = (
    responses.CompletionResponse,
    responses.ChatResponse,
    responses.ChatChunk,
    responses.EmbeddingResponse,
    responses.ModelList,
    responses.ModelCard,
    responses.TokenizeResponse,
    responses.DetokenizeResponse,
    responses.VersionResponse,
    responses.LoadResponse,
    responses.ErrorResponse,
    response_objects.ResponseObject,
    *response_objects.EVENTS,
    messages_objects.MessageObject,
    messages_objects.TokenCount,
    *messages_objects.EVENTS,
)
_TOKEN_ID = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string", "minLength": 1}
_ONE_PROMPT = [_TEXT, {"type": "array", "minItems": 1, "items": _TOKEN_ID}]
_PROMPT = {
    "anyOf": [*_ONE_PROMPT, *({"type": "array", "minItems": 1, "items": entry} for entry in _ONE_PROMPT)],
    "description": "Texts or token ids, one or several; no mixture of them.",
}
_MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": {"enum": ["system", "developer", "user", "assistant", "tool", "function"]},
            "content": {
                "anyOf": [
                    {"type": "string"},
                    {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["type", "text"],
                            "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                        },
                    },
                ]
            },
        },
    },
}


def _function(**fields: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of `{"type": "function", "function": …}` with a name and further fields."""
    function = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string", "pattern": "^[a-zA-Z0-9_.-]{1,64}$"}, **fields},
    }
    return {
        "type": "object",
        "required": ["type", "function"],
        "properties": {"type": {"const": "function"}, "function": function},
    }


_TOOL = _function(
    description={"type": "string"},
    parameters={"type": "object", "description": "A JSON schema of an object."},
)
_TOOLS = {"anyOf": [{"type": "array", "items": _TOOL}, {"type": "null"}], "default": None}
_TOOL_CHOICE = {
    "anyOf": [{"enum": ["none", "auto", "required"]}, _function(), {"type": "null"}],
    "default": None,
    "description": '"auto" if it is left out; a call is demanded by "required", and of one function by its name.',
}
_PRECISE: dict[str, dict[str, Any]] = {
    "CompletionBody": {
        "prompt": _PROMPT,
        "max_tokens": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": 16},
    },
    "ChatBody": {"messages": _MESSAGES, "tools": _TOOLS, "tool_choice": _TOOL_CHOICE},
    "EmbeddingBody": {"input": _PROMPT},
    "TokenizeBody": {"prompt": {"type": "string"}, "messages": _MESSAGES, "tools": _TOOLS},
}
"""What the structs' types are too wide for."""
_KEY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
"""The ways to bring a key, either of which does."""


def openapi_document(version: str, *, needs_key: bool = False) -> dict[str, Any]:
    """Return the whole document.

    Args:
        needs_key: whether the server was started with an API key.
    """
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Octavo",
            "version": version,
            "description": "OpenAI's API with vLLM's extras, and Anthropic's messages. Fields "
            "that are not listed are ignored, except those that ask for what cannot be had: "
            + ", ".join(unserved_fields(of_chats=True))
            + ".",
        },
        "paths": _paths(needs_key),
        "components": {"schemas": _schemas()},
    }
    if needs_key:
        document["components"]["securitySchemes"] = _KEY_SCHEMES
    return document


def known_paths() -> list[str]:
    """Return every path that is served, but for the files of the dashboard."""
    return [*_paths(needs_key=False), "/openapi.json", "/dashboard"]


def _schemas() -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components([*_BODIES, *_ANSWERS], ref_template=_REFERENCE)
    for name, schema in schemas.items():
        properties = schema.get("properties", {})
        for field in unserved_fields(of_chats=name == "ChatBody"):
            properties.pop(field, None)
        for field in response_bodies.OF_CHATS if name == "ResponseBody" else ():
            del properties[field]
        properties.update(_PRECISE.get(name, {}))
    schemas["TokenizeBody"]["oneOf"] = [{"required": ["prompt"]}, {"required": ["messages"]}]
    return schemas


def _paths(needs_key: bool) -> dict[str, Any]:
    plain = {"schema": {"type": "string"}}
    secured: dict[str, Any] = {"security": [{name: []} for name in _KEY_SCHEMES]} if needs_key else {}
    stream: dict[str, Any] = {"text/event-stream": {}}
    model_name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    return {
        "/v1/completions": {"post": {**secured, **_post("CompletionBody", "CompletionResponse", stream)}},
        "/v1/chat/completions": {"post": {**secured, **_post("ChatBody", "ChatResponse", stream)}},
        "/v1/responses": {"post": {**secured, **_post("ResponseBody", "ResponseObject", stream)}},
        "/v1/messages": {"post": {**secured, **_messages_post("MessagesBody", "MessageObject", stream)}},
        "/v1/messages/count_tokens": {"post": {**secured, **_messages_post("PromptBody", "TokenCount")}},
        "/v1/embeddings": {"post": {**secured, **_post("EmbeddingBody", "EmbeddingResponse")}},
        "/tokenize": {"post": {**secured, **_post("TokenizeBody", "TokenizeResponse")}},
        "/detokenize": {"post": {**secured, **_post("DetokenizeBody", "DetokenizeResponse")}},
        "/v1/models": {"get": {**secured, **_get(_json("ModelList"))}},
        "/v1/models/{model}": {"get": {**secured, **_get(_json("ModelCard")), "parameters": [model_name]}},
        "/load": {"get": {**secured, **_get(_json("LoadResponse"))}},
        "/metrics": {"get": {**secured, **_get({"text/plain": plain})}},
        "/octavo/snapshot": {"get": {**secured, **_get({"application/json": {"schema": {"type": "object"}}})}},
        "/version": {"get": _get(_json("VersionResponse"))},
        "/health": {"get": _get(None)},
        "/ping": {"get": _get(None), "post": _get(None)},
    }


def _post(body: str, answer: str | None, other_content: dict[str, Any] | None = None) -> dict[str, Any]:
    replies: dict[str, Any] = {"default": _error()}
    if answer is not None:
        replies["200"] = {"description": "The answer.", "content": {**_json(answer), **(other_content or {})}}
    return {"requestBody": {"required": True, "content": _json(body)}, "responses": replies}


def _messages_post(body: str, answer: str, other_content: dict[str, Any] | None = None) -> dict[str, Any]:
    operation = _post(body, answer, other_content)
    operation["responses"]["default"]["content"] = _json("MessagesError")
    return operation


def _get(content: dict[str, Any] | None) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "The answer."}
    if content is not None:
        answer["content"] = content
    return {"responses": {"200": answer, "default": _error()}}


def _error() -> dict[str, Any]:
    return {"description": "Why there is no answer.", "content": _json("ErrorResponse")}


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REFERENCE.format(name=name)}}}
