"""Outputs as the chat templates of published models write them, and what each says.

Sources: the templates of NousResearch/Hermes-2-Pro-Llama-3-8B, Qwen/Qwen3-0.6B, Qwen/Qwen3-Coder-30B-A3B-Instruct,
Qwen/Qwen3.5-4B, meta-llama/Llama-3.1-8B-Instruct, mistralai/Mistral-Nemo-Instruct-2407,
mistralai/Mistral-Small-3.2-24B-Instruct-2506, deepseek-ai/DeepSeek-R1-Distill-Qwen-32B.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from octavo.server.parsers.contract import OutputParser, ParsedMessage, Part, gather
from octavo.server.parsers.formats import OutputFormat
from octavo.server.parsers.plan import ReadingPlan

TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "units": {"enum": ["C", "F"]}},
    },
    "write_file": {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}},
    "now": {"type": "object", "properties": {}},
}


@dataclass(frozen=True)
class Published:
    """One output."""

    form: str | None
    text: str
    calls: list[tuple[str, Any]] = field(default_factory=list)
    """Names, and what the arguments stand for."""
    content: str = ""
    reasoning: str = ""
    prompt: str = ""
    """What it ends with."""

    def parser(self) -> OutputParser:
        """Return a reader of it."""
        return make_parser(self.form, self.prompt)


def make_parser(form: str | None, prompt: str = "", **options: Any) -> OutputParser:
    """Return a reader of a model that also thinks."""
    plan = ReadingPlan(OutputFormat(form, "think"), TOOLS, **options)
    return plan.make_parsers(prompt, "id")(0)


def read_pieces(parser: OutputParser, pieces: list[str]) -> ParsedMessage:
    """Return what a stream comes to."""
    parts: list[Part] = []
    for piece in pieces:
        parts += parser.push(piece)
    return gather([*parts, *parser.finish()])


def said(message: ParsedMessage) -> tuple[str, str, list[tuple[str, Any]]]:
    """Return reasoning, content, and the calls with what their arguments stand for."""
    return (
        message.reasoning,
        message.content,
        [(call.name, json.loads(call.arguments)) for call in message.calls],
    )


PARIS = {"city": "Paris"}
TRICKY = {"path": 'a "b" \\ {c}', "text": "</tool_call>]}\n\tünï\u2028 "}
CODE = 'if x < 3:\n    print("a\\n")\n'

PUBLISHED: dict[str, Published] = {
    "hermes, one": Published(
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        [("get_weather", PARIS)],
    ),
    "hermes, two behind text": Published(
        "hermes",
        "Let me look.\n\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        [("get_weather", {"city": "Paris", "days": 2}), ("now", {})],
        content="Let me look.",
    ),
    "hermes, the arguments first": Published(
        "hermes",
        '<tool_call>\n{"arguments": {"city": "Paris"}, "name": "get_weather"}\n</tool_call>\n',
        [("get_weather", PARIS)],
    ),
    "hermes, marks and braces within texts": Published(
        "hermes",
        f'<tool_call>\n{{"name": "write_file", "arguments": {json.dumps(TRICKY)}}}\n</tool_call>',
        [("write_file", TRICKY)],
    ),
    "hermes, behind a thought": Published(
        "hermes",
        "<think>\nThey want Paris.\n\nSo: <tool_call>?\n</think>\n\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        [("get_weather", PARIS)],
        reasoning="They want Paris.\n\nSo: <tool_call>?",
    ),
    "hermes, as text within text": Published(
        "hermes",
        r'<tool_call>{"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}</tool_call>',
        [("get_weather", PARIS)],
    ),
    "qwen3_coder, one": Published(
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n<parameter=units>\nC\n</parameter>\n</function>\n</tool_call>",
        [("get_weather", {"city": "Paris", "days": 3, "units": "C"})],
    ),
    "qwen3_coder, two behind a thought that the prompt has opened": Published(
        "qwen3_coder",
        "A file.\n</think>\n\nHere:\n\n"
        f"<tool_call>\n<function=write_file>\n<parameter=path>\na.py\n</parameter>\n<parameter=text>\n{CODE}\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        [("write_file", {"path": "a.py", "text": CODE}), ("now", {})],
        content="Here:",
        reasoning="A file.",
        prompt="<|im_start|>assistant\n<think>\n",
    ),
    "qwen3_coder, without the outer marks": Published(
        "qwen3_coder",
        "<function=get_weather>\n<parameter=city>\n12\n</parameter>\n</function>",
        [("get_weather", {"city": "12"})],
    ),
    "qwen3_coder, within a thought that was not closed": Published(
        "qwen3_coder",
        "I need <tool_call>.\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        [("now", {})],
        reasoning="I need <tool_call>.",
        prompt="<|im_start|>assistant\n<think>\n",
    ),
    "llama3_json, one": Published(
        "llama3_json", '{"name": "get_weather", "parameters": {"city": "Paris"}}', [("get_weather", PARIS)]
    ),
    "llama3_json, two": Published(
        "llama3_json",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "now", "parameters": {}}',
        [("get_weather", PARIS), ("now", {})],
    ),
    "llama3_json, behind the tag": Published(
        "llama3_json",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}',
        [("get_weather", PARIS)],
    ),
    "mistral, a list": Published(
        "mistral",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "now", "arguments": {}}]',
        [("get_weather", PARIS), ("now", {})],
    ),
    "mistral, names": Published(
        "mistral",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[ARGS]{}',
        [("get_weather", PARIS), ("now", {})],
    ),
    "mistral, names with ids": Published(
        "mistral",
        'Well. [TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"city": "Paris"}',
        [("get_weather", PARIS)],
        content="Well.",
    ),
    "a thought": Published(
        None, "<think>\nHm: 1 < 2.\n</think>\n\nYes, </think>.", content="Yes, </think>.", reasoning="Hm: 1 < 2."
    ),
    "a thought that the prompt has opened": Published(
        None, "Hm.\n</think>\n\nYes.\n", content="Yes.\n", reasoning="Hm.", prompt="<｜Assistant｜><think>\n"
    ),
    "no thought": Published(
        None, "Yes. <think>", content="Yes. <think>", prompt="<|im_start|>assistant\n<think>\n\n</think>\n\n"
    ),
}
"""By what they show."""

MALFORMED: dict[str, tuple[str, str]] = {
    "hermes, no name": ("hermes", '<tool_call>\n{"function": "x"}\n</tool_call> and on '),
    "hermes, no JSON": ("hermes", "a <tool_call>\nget_weather(city)\n</tool_call>"),
    "hermes, a list of arguments": ("hermes", '<tool_call>{"name": "now", "arguments": [1]}</tool_call>'),
    "hermes, a name that is a number": ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
    "hermes, unclosed": ("hermes", '<tool_call>{"name": "now", "argu'),
    "hermes, a mark twice": ("hermes", "<tool_call><tool_call><tool_ca"),
    "qwen3_coder, no function": ("qwen3_coder", "<tool_call>\nnow\n</tool_call>"),
    "qwen3_coder, no name": ("qwen3_coder", "<tool_call>\n<function=>\n</function>\n</tool_call>"),
    "qwen3_coder, a torn name": ("qwen3_coder", "x <function=get_wea"),
    "llama3_json, an answer in JSON": ("llama3_json", '{"name": "Ann", "parameters": {"age": 3}}'),
    "llama3_json, no parameters": ("llama3_json", '{"name": "now"}'),
    "llama3_json, code": ("llama3_json", '<|python_tag|>brave_search.call(query="x")'),
    "llama3_json, text first": ("llama3_json", 'So {"name": "now", "parameters": {}}'),
    "mistral, no call": ("mistral", "[TOOL_CALLS] I would call now"),
    "mistral, an empty list": ("mistral", "[TOOL_CALLS][]"),
    "mistral, no arguments": ("mistral", "[TOOL_CALLS]now[ARGS] none"),
    "mistral, an endless id": ("mistral", "[TOOL_CALLS]now[CALL_ID]" + "a" * 100 + "[ARGS]{}"),
}
"""Form and text."""
