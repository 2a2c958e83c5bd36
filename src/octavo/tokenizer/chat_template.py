"""Renders a model's chat template: Jinja in a sandbox, set up the way model authors expect.

Authors write against the environment of `transformers`: trimmed blocks, loop controls, `raise_exception`,
`strftime_now`, a `tojson` that escapes no HTML, and a `generation` tag that marks the assistant's text (ignored here).

Source: https://huggingface.co/docs/transformers/chat_templating_writing
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.errors import RequestError
from octavo.tokenizer.chat_messages import Message, check_messages, final_text

MAX_RENDERED_CHARS = 64 << 20
"""A template that writes more than this is taken for one that never ends."""

_RESERVED = ("messages", "tools", "documents", "add_generation_prompt", "chat_template", "tokenize")


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = False,
    continue_final_message: bool = False,
    special_tokens: Mapping[str, str] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    max_chars: int = MAX_RENDERED_CHARS,
) -> str:
    """Return the prompt text of a conversation.

    Args:
        continue_final_message: end the prompt inside the last message, for the model to go on from there.
        special_tokens: `bos_token` and the like, by name; templates write them out.
        chat_template_kwargs: further variables for the template, such as `enable_thinking`.
        max_chars: a template that writes more is refused.

    Raises: RequestError for messages the template refuses, or a template that cannot be rendered.
    """
    if add_generation_prompt and continue_final_message:
        raise RequestError(
            "add_generation_prompt and continue_final_message exclude each other: one opens a new message, the other"
            " leaves the last one open",
            parameter="continue_final_message",
        )
    kwargs = dict(chat_template_kwargs or {})
    for name in _RESERVED:
        if name in kwargs:
            raise RequestError(
                f"chat_template_kwargs must not set {name!r}, which has an argument of its own",
                parameter="chat_template_kwargs",
                value=name,
            )
    _check_dicts("tools", tools)
    _check_dicts("documents", documents)
    compiled = _compile(template)
    checked = check_messages(messages, compiled.content_format)
    variables = {
        **(special_tokens or {}),
        **kwargs,
        "messages": checked,
        "tools": list(tools) if tools else None,
        "documents": list(documents) if documents else None,
        "add_generation_prompt": add_generation_prompt,
    }
    text = compiled.render(variables, max_chars)
    return _cut_after_final_message(text, checked) if continue_final_message else text


def check_template(template: str) -> None:
    """Raise `RequestError` for what is no template. What it does with a conversation shows only then."""
    _compile(template)


def _check_dicts(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, Sequence) and all(isinstance(entry, Mapping) for entry in value):
        return
    raise RequestError(f"{name} must be a list of dicts", parameter=name, value=value)


class _CompiledTemplate:
    """A template, and in which form it reads a message's content."""

    def __init__(self, source: str) -> None:
        environment = _environment()
        self._template = environment.from_string(source)
        self.content_format = _content_format(environment.parse(source))

    def render(self, variables: Mapping[str, Any], max_chars: int) -> str:
        chunks: list[str] = []
        num_chars = 0
        try:
            for chunk in self._template.generate(variables):
                chunks.append(chunk)
                num_chars += len(chunk)
                if num_chars > max_chars:
                    _fail(f"the chat template wrote more than {max_chars} characters")
        except RequestError:
            raise
        except jinja2.TemplateError as error:
            _fail(f"the chat template refuses the conversation: {error.message or type(error).__name__}")
        except Exception as error:  # a template is a program of its author's: whatever it raises ends this request only
            _fail(f"the chat template failed: {type(error).__name__}: {error}")
        text = "".join(chunks)
        if not _is_unicode(text):
            _fail("the chat template wrote a lone surrogate, which is not valid Unicode")
        return text


@lru_cache(maxsize=16)
def _compile(source: str) -> _CompiledTemplate:
    try:
        return _CompiledTemplate(source)
    except jinja2.TemplateSyntaxError as error:
        _fail(f"the chat template is not valid: line {error.lineno}: {error.message}")
    except RecursionError:
        _fail("the chat template is nested too deeply")
    except Exception as error:  # from the compilers of Jinja and Python: a break outside a loop, a number too long
        _fail(f"the chat template is not valid: {type(error).__name__}: {error}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fail(message: str) -> NoReturn:
    raise RequestError(message.encode(errors="backslashreplace").decode(), parameter="messages") from None


class _GenerationTag(Extension):
    """`{% generation %} … {% endgeneration %}`: training code reads the span, for a prompt it is plain text."""

    tags = {"generation"}  # noqa: RUF012 - declared so by Jinja

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _content_format(tree: nodes.Template) -> str:
    """Tell whether the template reads a message's content as a "string", as "parts", or as "either"."""
    has_loop = any(_is_content(loop.iter) for loop in tree.find_all(nodes.For))
    if not has_loop:
        return "string"
    return "either" if any(test.name == "string" for test in tree.find_all(nodes.Test)) else "parts"


def _is_content(node: nodes.Node) -> bool:
    """Tell whether an expression is `message['content']`, `message.content`, or a variable named content."""
    if isinstance(node, nodes.Filter) and node.node is not None:
        return _is_content(node.node)
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Name) and node.name == "content"


def _cut_after_final_message(text: str, messages: Sequence[Message]) -> str:
    final = final_text(messages[-1])
    start = text.rfind(final.strip()) if final.strip() else -1
    if start < 0:
        raise RequestError(
            "continue_final_message needs a last message with text, which the chat template writes out unchanged",
            parameter="continue_final_message",
        )
    kept = final.lstrip() if text.startswith(final.lstrip(), start) else final.strip()
    return text[: start + len(kept)]
