"""`octavo chat`: a conversation in the terminal, answered while it is generated."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.conversation import Conversation
from octavo.cli.engine_flags import EngineCommand, engine_flags, given_engine_options, named_by_flags
from octavo.cli.file_errors import told
from octavo.cli.line_input import line_history, read_message
from octavo.cli.model_option import takes_model
from octavo.cli.option_types import JsonObject
from octavo.cli.prompt_input import chat_template_flag, check_can_chat, given_template
from octavo.cli.sampling_flags import COMMAND_MAX_TOKENS, sampling_flags, sampling_params
from octavo.cli.summary import answer_lines, ending
from octavo.errors import EngineDeadError, OctavoError, RequestError
from octavo.sampling_params import RequestOutputKind
from octavo.wording import counted

if TYPE_CHECKING:
    from octavo.llm import LLM
    from octavo.outputs import RequestOutput
    from octavo.sampling_params import SamplingParams

_PROMPT, _MORE = "> ", ". "
_SAMPLING = ("seed", "temperature", "top_p", "top_k", "min_p", "max_tokens", "repetition_penalty", "stop")
_HELP = '''\
/system [TEXT]  begin again with this system message, or without one
/reset          begin again, with the same system message
/save FILE      keep the conversation as JSON
/load FILE      go on with a conversation that was kept
/stats          speed of the last answer, and the KV cache since the start
/quit           leave, as does Ctrl-D
A line that ends in \\ goes on in the next; """ alone on a line begins and ends several.
Ctrl-C stops an answer.'''


@click.command("chat", cls=EngineCommand)
@takes_model
@click.option("--system", help="System message.")
@click.option(
    "--load",
    "path",
    type=click.Path(path_type=Path),
    help="Go on with a conversation that was kept; --system replaces its system message.",
)
@sampling_flags(max_tokens=COMMAND_MAX_TOKENS["chat"], only=_SAMPLING)
@chat_template_flag
@click.option(
    "--chat-template-kwargs",
    "variables",
    type=JsonObject(),
    help='Variables for the chat template, for example {"enable_thinking": true}.',
)
@engine_flags
def command(
    model: str,
    system: str | None,
    path: Path | None,
    chat_template: str | None,
    variables: dict[str, Any] | None,
    **flags: Any,
) -> None:
    """Talk with MODEL in the terminal. Type /help for what else can be typed.

    MODEL is a GGUF file, a directory, a hub id or a built-in name.
    """
    conversation = Conversation(system)
    if path is not None:
        conversation.load(path, system)
    template = given_template(chat_template)
    from octavo.llm import LLM

    with LLM(model, **given_engine_options(flags)) as llm:
        check_can_chat(llm, template)
        params = sampling_params(llm, flags, max_tokens=COMMAND_MAX_TOKENS["chat"])
        session = _Session(llm, conversation, params, variables or {}, template)
        with line_history():
            while session.take_turn():
                pass


class _Session:
    """One conversation with a loaded model, and what the user may do beside talking."""

    def __init__(
        self,
        llm: LLM,
        conversation: Conversation,
        params: SamplingParams,
        variables: Mapping[str, Any],
        template: str | None = None,
    ) -> None:
        self._llm = llm
        self._conversation = conversation
        self._params = params
        self._params.output_kind = RequestOutputKind.DELTA
        self._variables = dict(variables)
        self._template = template
        self._last: RequestOutput | None = None

    def take_turn(self) -> bool:
        """Read a message and answer it, or do what the user asks for; return whether to go on."""
        is_terminal = sys.stdin.isatty()
        try:
            text = read_message(_PROMPT if is_terminal else "", _MORE if is_terminal else "")
        except EOFError:
            return False
        except KeyboardInterrupt:
            if not is_terminal:
                raise  # nobody types there who could leave with Ctrl-D
            click.echo()
            return True
        if text.startswith("/"):
            return self._obey(*(text[1:].split(maxsplit=1) or [""]))
        if text.strip():
            self._answer(text)
        return True

    def _obey(self, name: str, argument: str = "") -> bool:
        """Do what a line that begins with / says; return whether to go on."""
        argument = argument.strip()
        try:
            match name:
                case "quit" | "exit":
                    return False
                case "system":
                    self._conversation.set_system(argument or None)
                case "reset":
                    self._conversation.reset()
                case "save" | "load" if not argument:
                    _note(f"/{name} needs the name of a file")
                case "save":
                    self._conversation.save(Path(argument).expanduser())
                case "load":
                    self._conversation.load(Path(argument).expanduser())
                    _note(counted(len(self._conversation.messages), "message"))
                case "stats":
                    self._show_stats()
                case "help":
                    click.echo(_HELP)
                case _:
                    _note(f"/{name} is unknown; /help lists what there is")
        except (OctavoError, OSError) as error:
            _note(told(error))
        return True

    def _answer(self, text: str) -> None:
        """Print the answer while it is generated. A stopped one stays as far as it came, a failed one does not."""
        self._conversation.add("user", text)
        pieces: list[str] = []
        output = None
        try:
            for output in self._llm.stream_chat(
                self._conversation.messages,
                self._params,
                chat_template=self._template,
                chat_template_kwargs=self._variables,
            ):
                self._last = output
                pieces.append(output.outputs[0].text)
                click.echo(pieces[-1], nl=False)
            click.echo()
            if output is not None and output.error is not None:
                raise RequestError(output.error.message)
            reason = None if output is None else ending(self._llm, output, output.outputs[0], self._params)
            if reason is not None:
                _note(f"answer {reason}")
        except KeyboardInterrupt:
            click.echo()
            _note("stopped")
        except EngineDeadError:
            raise
        except OctavoError as error:
            self._conversation.drop_last()
            _note(named_by_flags(str(error), of_request=True))
            return
        self._conversation.add("assistant", "".join(pieces))

    def _show_stats(self) -> None:
        if self._last is None or not self._last.finished:
            _note("no answer has ended yet")
            return
        cached = counted(self._last.num_cached_tokens or 0, "prompt token")
        turns = counted(self._conversation.num_turns, "turn")
        _note(f"last answer: {cached} from the prefix cache, {turns} in the conversation")
        for line in answer_lines(self._llm, [self._last], self._params):
            _note(line)
        _note(f"since the start: {self._llm.kv_cache_stats().summary()}")


def _note(text: str) -> None:
    """Write to stderr, so that the answers alone are the output."""
    click.echo(f"({text})", err=True)
