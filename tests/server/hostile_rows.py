"""Hostile request bodies by kind, with the statuses that they may get. The model has 2,048 logits and 512 tokens.

A body is a dict of fields that are added to a small good request, or bytes that are sent as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hostile_forms import REFUSED

COMPLETIONS, CHAT, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
VOCAB, CONTEXT = 2048, 512
BIG = 2**63


@dataclass(frozen=True)
class Row:
    """One kind."""

    name: str
    bodies: list[Any]
    statuses: tuple[int, ...] = (400,)
    path: str = COMPLETIONS
    mentions: str = ""
    """What each answer's message must hold."""


def user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **fields}


def nested(depth: int) -> bytes:
    return b'{"prompt":"a","chat_template_kwargs":' + b'{"a":' * depth + b"1" + b"}" * (depth + 1)


def literal(field: str, number: str) -> bytes:
    """A number that a JSON writer would not write."""
    return f'{{"prompt":"a","max_tokens":1,"{field}":{number}}}'.encode()


def each(field: str, *values: Any) -> list[Any]:
    return [{field: value} for value in values]


NOT_OBJECTS = [b'"str"', b"[1]", b"42", b"null", b"true", b""]
NOT_JSON = [b'{"a":', b"{'prompt':'a'}", b'{"prompt":"a"', b"\xef\xbb\xbf{}", b"NaN", b"\xff\xfe"]
DEEP = [b"[" * 100_000, b'{"prompt":' + b"[" * 3000 + b"]" * 3000 + b"}", b'{"a":' * 50_000, nested(70), nested(5000)]
HALVES = [rb'{"prompt":"\ud800"}', rb'{"prompt":["\udfff"]}', rb'{"prompt":"a","stop":"\ud800"}']
TEXTS = [{"prompt": char * (2_000_000 // len(char))} for char in ("a", "\n", "\u0301", "<|im_start|>")]
LOOP, CLASSES = "{% for i in range(10**9) %}{% endfor %}", "{{''.__class__.__mro__}}"
URLS = (
    "http://127.0.0.1:1/", "http://169.254.169.254/", "file:///etc/passwd", "http://good\\@evil", "data:image/png,A",
)  # fmt: skip


def tool(name: str = "f", **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS: list[dict[str, Any]] = [
    *({"tools": [tool(name)]} for name in ("../", "a\nb", "", "a" * 65)),
    {"tools": [tool(pattern="(")]},
    {"tools": [tool(properties={"x": {"pattern": "("}})]},
    {"tools": [tool(type="bogus")]},
    {"tools": [tool(f"f{index}") for index in range(10_000)]},
    {"tools": [tool()], "tool_choice": "nope"},
    {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "g"}}},
    {"tools": [tool(properties={"x": {"pattern": "(a+)+(?=b)"}})], "tool_choice": "required"},
    {"tools": [tool(**{"$ref": "#"})], "tool_choice": "required"},
]
FORMATS = [
    5,
    {},
    {"type": "yaml"},
    {"type": ["json_object"]},
    {"type": "json_schema"},
    {"type": "json_schema", "json_schema": {"name": "a"}},
    {"type": "json_schema", "json_schema": {"name": "a", "schema": 5}},
    {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#"}}},
    {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}},
]
UNSENT = ("lone surrogate", "5 MB enum")
"""Not what a client can send, and more than the server reads."""

ROWS = [
    Row("not an object", NOT_OBJECTS),
    Row("not JSON", NOT_JSON),
    Row("deep nesting", DEEP),
    Row("lone surrogate", HALVES),
    Row("n", each("n", 0, -1, 1.5, "2", 16385, 2**31, BIG, 1e308), mentions="n"),
    Row("beams", [{"best_of": 10**9}, {"use_beam_search": True, "beam_width": 10**6}, {"use_beam_search": True}]),
    Row("empty prompts", each("prompt", "", [""], [], None, [[]], [[], [1]])),
    Row("too many prompts", each("prompt", ["a"] * 1025, [[1]] * 2000, ["a"] * 100_000)),
    Row("token ids", each("prompt", [-1], [VOCAB], [2**31], [BIG], [1.5], [True], [[1], [VOCAB]], [1, "a"])),
    Row("long prompts", each("prompt", [5] * (CONTEXT + 1), [5] * CONTEXT, "a " * 2000), mentions="512"),
    Row("huge text", TEXTS),
    Row("temperature", [*each("temperature", -0.1, 2.01, "hot", 1e308, []), literal("temperature", "NaN")]),
    Row("infinite temperature", [literal("temperature", value) for value in ("Infinity", "-Infinity", "1e999")]),
    Row("top_p", [*each("top_p", 0, -1, 1.0001), literal("top_p", "NaN")]),
    Row("min_p and top_k", [{"min_p": 2}, {"min_p": -1}, {"top_k": -2}, {"top_k": 2**31}, {"top_k": 1.5}]),
    Row("repetition_penalty", [*each("repetition_penalty", 0, -1), literal("repetition_penalty", "Infinity")]),
    Row("vanishing repetition_penalty", [literal("repetition_penalty", v) for v in ("1e-300", "NaN", "-Infinity")]),
    Row("other penalties", [{"presence_penalty": 2.01}, {"frequency_penalty": -2.01}, {"presence_penalty": "a"}]),
    Row("max_tokens", each("max_tokens", 0, -1, BIG, 600)),
    Row("min_tokens", [{"min_tokens": 3}, {"min_tokens": 10**9, "max_tokens": None}, {"min_tokens": -1}]),
    Row("logprobs", each("logprobs", 21, -2, "x", 10**6)),
    Row("top_logprobs", [user("a", top_logprobs=count, logprobs=True) for count in (10**6, 21, -2)], path=CHAT),
    Row("top_logprobs alone", [user("a", top_logprobs=count) for count in (1, 5, 20)], path=CHAT),
    Row("logit_bias", each("logit_bias", {"999999": 5}, {"-1": 5}, {"a": 1}, {str(i): 1 for i in range(200_000)}, [1])),
    Row("odd biases", [*(b'{"prompt":"a","logit_bias":{"1":%b}}' % v for v in (b"NaN", b"1e999", b'"x"', b"null"))]),
    Row("stop_token_ids", each("stop_token_ids", [VOCAB], [-1], [2**40], ["a"], [1] * 100_000)),
    Row("allowed_token_ids", each("allowed_token_ids", [VOCAB], [-1], [2**40], ["a"], [])),
    Row("bad_words", each("bad_words", [""], ["a"] * 10_000, [1], "a")),
    Row("stop", each("stop", "", [""], list("abcde"), "a" * 1_000_000, ["a" * 100_000] * 4, [1])),
    Row("seed", each("seed", -(2**63) - 1, BIG, 1.5, "a")),
    Row("structured outputs", [{"structured_outputs": form} for name, form in REFUSED.items() if name not in UNSENT]),
    Row("structured outputs of other types", each("structured_outputs", 5, "json", [{}], {"json": 1}, {"jsn": {}})),
    Row(
        "old names",
        [{"guided_regex": "a"}, {"guided_json": {"type": "object"}}, {"guided_choice": ["a"]}],
        mentions="structured_outputs",
    ),
    Row("response_format", each("response_format", *FORMATS)),
    Row("tools", [user("a", **fields) for fields in TOOLS], path=CHAT, mentions="tool"),
    Row("own template", [user("a", chat_template=text) for text in (LOOP, CLASSES, "x")], path=CHAT),
    Row(
        "template variables",
        [user("a", chat_template_kwargs={name: 1}) for name in ("tokenize", "tools", "messages")],
        path=CHAT,
    ),
    Row(
        "names of template variables",
        [
            user("a", chat_template_kwargs={name: 1})
            for name in ("self", "cls", "", "a b", "__class__", "range", "loop")
        ],
        (200,),
        path=CHAT,
    ),
    Row("messages", each("messages", [], None, "a", [1], user("a")["messages"] * 20_000), path=CHAT),
    Row(
        "one message",
        [user("a", messages=[m]) for m in ({"role": "x", "content": "a"}, {"role": "user"}, {})],
        path=CHAT,
    ),
    Row("fetched content", [user([{"type": "image_url", "image_url": {"url": url}}]) for url in URLS], path=CHAT),
    Row("prompt_embeds", each("prompt_embeds", "gASVAAAAAA==", "AAAA", ["x"])),
    Row("cache_salt", each("cache_salt", "", "a" * 129, "a/b", "\0", 5)),
    Row(
        "model",
        each("model", "../../etc/passwd", "a" * 1_000_000, "tiny/..", "TINY"),
        (404,),
        mentions="does not exist",
    ),
    Row("unknown fields", [{"unknown": 1}, {"vllm_xargs": {"a": 2**80}}, literal("x", "9" * 400)], (200, 400)),
    Row("stream", [{"stream": "yes"}, {"stream": True, "stream_options": 1}, {"stream": 1}]),
    Row("tokenize", [{"prompt": 5}, {"prompt": None}, {"messages": []}], path="/tokenize"),
    Row("detokenize", each("tokens", [VOCAB], [-1], "a", [2**70]), path="/detokenize"),
    Row("input", each("input", "", [], None, 5, [""], ["a", 1], [[]], [VOCAB], [[-1]], "\0" * 600), path=EMBEDDINGS),
    Row("many inputs", each("input", ["a"] * 1025, [[1]] * 100_000, [""] * 2000), path=EMBEDDINGS),
    Row("long inputs", each("input", [1] * 513, ["a", [1]], "a b " * 100_000), path=EMBEDDINGS),
    Row("dimensions", [{"input": "a", "dimensions": n} for n in (0, -1, 65, BIG, 1.5, "4", [1])], path=EMBEDDINGS),
    Row("encoding", [{"input": "a", "encoding_format": f} for f in ("bytes", "", 5, ["float"])], path=EMBEDDINGS),
    Row(
        "normalize",
        [{"input": "a", "normalize": n} for n in (True, 1, "x")],
        mentions="use_activation",
        path=EMBEDDINGS,
    ),
]
