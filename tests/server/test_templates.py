from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from octavo.errors import QueueFullError, RequestError
from octavo.server.templates import TemplateRenderer

LOOP = "{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}{% endfor %}"


def arguments(template: str, text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"template": template, "messages": [{"role": "user", "content": text}], **more}


def run(test: Callable[[TemplateRenderer], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def with_renderer() -> None:
        renderer = TemplateRenderer(**{"seconds": 5.0, "max_chars": 10_000, **options})
        try:
            await test(renderer)
        finally:
            await renderer.close()

    asyncio.run(with_renderer())


def test_conversations_are_rendered_each_its_own() -> None:
    async def test(renderer: TemplateRenderer) -> None:
        await renderer.start()
        texts = [f"text {index} ü" for index in range(20)]
        jobs = (renderer.render(arguments("<{{ messages[0].content }}>", text)) for text in texts)
        assert await asyncio.gather(*jobs) == [f"<{text}>" for text in texts]

    run(test)


def test_what_a_template_refuses_is_told_with_its_parameter() -> None:
    async def test(renderer: TemplateRenderer) -> None:
        with pytest.raises(RequestError, match="roles must alternate") as refusal:
            await renderer.render(arguments("{{ raise_exception('roles must alternate') }}"))
        assert refusal.value.parameter == "messages"

    run(test)


def test_a_system_that_gives_no_process_is_a_reason_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(renderer: TemplateRenderer) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "executable", "/no/such/python")
            with pytest.raises(QueueFullError, match="no process for chat templates"):
                await renderer.render(arguments("fine"))
        assert await renderer.render(arguments("fine")) == "fine"

    run(test)


def test_an_endless_template_is_stopped_and_harms_no_other() -> None:
    async def test(renderer: TemplateRenderer) -> None:
        endless = asyncio.create_task(renderer.render(arguments(LOOP)))
        await asyncio.sleep(0.05)
        assert await renderer.render(arguments("fine")) == "fine"
        with pytest.raises(RequestError, match="chat_template_timeout"):
            await endless
        assert await renderer.render(arguments("still fine")) == "still fine"

    run(test, seconds=1.0)


def test_endless_templates_everywhere_make_others_wait_no_longer_than_one_may_take() -> None:
    async def test(renderer: TemplateRenderer) -> None:
        endless = [asyncio.create_task(renderer.render(arguments(LOOP))) for _ in range(12)]
        failures = await asyncio.gather(*endless, return_exceptions=True)
        assert {type(failure) for failure in failures} == {RequestError, QueueFullError}
        assert await renderer.render(arguments("fine")) == "fine"

    run(test, seconds=0.5)


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("{% for i in range(9999) %}aaaaaaaaaa{% endfor %}", "more than 10000 characters"),
        ("{{ 'a' * 10**10 }}", "MemoryError"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "failed"),
        ("{% if %}", "not valid"),
        ("{{ " + "(" * 5000, "not valid|too deeply"),
    ],
    ids=["long", "memory", "classes", "include", "syntax", "nested"],
)
def test_templates_that_do_what_they_must_not_are_refused(template: str, complaint: str) -> None:
    async def test(renderer: TemplateRenderer) -> None:
        with pytest.raises(RequestError, match=complaint):
            await renderer.render(arguments(template))
        assert await renderer.render(arguments("fine")) == "fine"

    run(test)


def test_a_process_that_somebody_ended_is_replaced() -> None:
    async def test(renderer: TemplateRenderer) -> None:
        assert await renderer.render(arguments("one")) == "one"
        worker = renderer._idle[0]
        worker._process.kill()
        await worker._process.wait()
        assert await renderer.render(arguments("two")) == "two"

    run(test)


def test_a_conversation_whose_process_somebody_kills_is_rendered_by_another() -> None:
    async def test(renderer: TemplateRenderer) -> None:
        assert await renderer.render(arguments("one")) == "one"
        os.kill(renderer._idle[0]._process.pid, signal.SIGKILL)  # nobody has noticed yet
        assert await renderer.render(arguments("two")) == "two"

    run(test)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_leaves_the_end_to_the_server(number: int) -> None:
    async def test(renderer: TemplateRenderer) -> None:
        assert await renderer.render(arguments("one")) == "one"
        worker = renderer._idle[0]
        worker._process.send_signal(number)
        assert await renderer.render(arguments("two")) == "two"
        assert renderer._idle == [worker]

    run(test)


def test_a_cancelled_conversation_is_not_answered_to_the_next() -> None:
    async def test(renderer: TemplateRenderer) -> None:
        await renderer.start()
        cancelled = asyncio.create_task(renderer.render(arguments(LOOP)))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert await renderer.render(arguments("mine")) == "mine"

    run(test)
