"""A server around an engine without a model: an answer says its prompt again, so that a foreign text shows; that of a
chat, its last message.

A prompt that begins with BROKEN makes its steps fail, with CRASH it ends the engine's thread, with HANG it stops it.
Usage: fake_server.py [--step-seconds S] [--max-num-seqs N] and flags of the server: --api-key K …
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parent.parent))

from face_fakes import EOS, ByteTokenizer, make_engine

from octavo.cli.engine_flags import flags_of, given_options
from octavo.server.lifecycle import run_server
from octavo.server.logs import configure_logs
from octavo.server.options import ServerOptions
from octavo.server.protocol.limits import RequestLimits


class FakeTokenizer(ByteTokenizer):
    chat_template = "{{ messages[-1].content }}"
    """Of a chat, the last message is said again; --chat-template is another."""

    def __init__(self) -> None:
        super().__init__(vocab_size=300)
        self.chat_templates = {"default": self.chat_template}

    def render_arguments(
        self, conversation: list[dict[str, Any]], *, chat_template: str | None = None, **options: Any
    ) -> dict[str, Any]:
        names = ("tools", "documents", "add_generation_prompt", "continue_final_message")
        arguments = {name: options.pop(name) for name in names if name in options}
        template = chat_template or self.chat_templates["default"]
        return {**arguments, "template": template, "messages": conversation, "chat_template_kwargs": options}


def next_token(ids: list[int], prompt_len: int) -> int:
    start = bytes(ids[:8])
    if start.startswith(b"CRASH"):
        raise SystemExit("injected")
    if start.startswith(b"BROKEN"):
        raise RuntimeError("injected")
    if start.startswith(b"HANG"):
        time.sleep(1000)
    position = len(ids) - prompt_len
    return ids[position] if position < prompt_len else EOS


@click.command()
@click.option("--step-seconds", type=float, default=0.0)
@click.option("--max-num-seqs", type=int, default=32)
@click.option("--num-blocks", type=int, default=2048)
@flags_of(ServerOptions, without={"port"})
def main(step_seconds: float, max_num_seqs: int, num_blocks: int, **flags: Any) -> None:
    tokenizer = FakeTokenizer()
    engine, _ = make_engine(
        next_token,
        tokenizer=tokenizer,
        step_seconds=step_seconds,
        max_num_seqs=max_num_seqs,
        num_blocks=num_blocks,
        max_model_len=4096,
    )
    options = ServerOptions(port=0, **given_options(ServerOptions, flags))
    configure_logs(options)
    sys.exit(run_server(engine, options, RequestLimits(), "fake"))


if __name__ == "__main__":
    main()
