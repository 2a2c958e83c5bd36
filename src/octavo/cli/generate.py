"""`octavo generate`: answer prompts, as text while it is made or as one line of JSON a prompt."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any

import click

from octavo.cli.engine_flags import EngineCommand, engine_flags, given_engine_options, named_by_flags
from octavo.cli.model_option import takes_model
from octavo.cli.prompt_input import PromptForm, prompt_flags, read_prompts
from octavo.cli.sampling_flags import COMMAND_MAX_TOKENS, sampling_flags, sampling_params
from octavo.cli.summary import ending, summary
from octavo.outputs import finite_logprob
from octavo.sampling_params import RequestOutputKind

if TYPE_CHECKING:
    from octavo.llm import LLM
    from octavo.outputs import CompletionOutput, RequestOutput
    from octavo.sampling_params import SamplingParams


@click.command("generate", cls=EngineCommand)
@takes_model
@prompt_flags
@click.option("--json", "as_json", is_flag=True, help="Write one line of JSON a prompt.")
@click.option("-q", "--quiet", is_flag=True, help="No progress and no summary.")
@sampling_flags(max_tokens=COMMAND_MAX_TOKENS["generate"])
@engine_flags
@click.pass_context
def command(
    ctx: click.Context,
    /,
    model: str,
    prompts: Sequence[str],
    prompt_file: IO[str] | None,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> None:
    """Generate text for one or more prompts.

    A single prompt is answered while it is generated, then summed up on stderr. Without -p and --prompt-file all that
    is piped in is the prompt; with them stdin is left alone.
    """
    form = PromptForm.of(flags)
    texts = read_prompts(prompts, prompt_file)
    from octavo.llm import LLM

    options = {"use_tqdm_on_load": not quiet, **given_engine_options(flags)}
    with LLM(model, **options) as llm:
        params = sampling_params(llm, flags, max_tokens=COMMAND_MAX_TOKENS["generate"])
        if len(texts) == 1 and params.n == 1 and not as_json:
            failed = _stream_one(llm, form.rendered(llm, texts[0]), params, quiet, form.chat)
        else:
            failed = _generate_all(llm, [form.rendered(llm, text) for text in texts], params, as_json, quiet)
    ctx.exit(1 if failed else 0)


def _stream_one(llm: LLM, prompt: Any, params: SamplingParams, quiet: bool, chat: bool) -> bool:
    """Print the answer as it comes, then a summary; return whether it failed."""
    params.output_kind = RequestOutputKind.DELTA
    output, has_text = None, False
    for output in llm.stream(prompt, params):
        click.echo(output.outputs[0].text, nl=False)
        has_text = has_text or output.outputs[0].text != ""
    click.echo()
    assert output is not None, "a stream ends with a finished output"
    if output.error is not None:
        click.echo(f"Error: {named_by_flags(output.error.message, of_request=True)}", err=True)
    elif not (has_text or chat or output.outputs[0].stop_reason) and llm.get_tokenizer().chat_template is not None:
        click.echo("Note: the model ended at once. It is made for conversations: try --chat.", err=True)
    if not quiet:
        click.echo(summary(llm, [output], params), err=True)
    return output.error is not None


def _generate_all(llm: LLM, prompts: list[Any], params: SamplingParams, as_json: bool, quiet: bool) -> bool:
    """Print all answers in order, then a summary; return whether one failed."""
    show_progress = not quiet and len(prompts) > 1 and sys.stderr.isatty()
    outputs = llm.generate(prompts, params, use_tqdm=show_progress, on_error="return")
    for index, output in enumerate(outputs):
        if as_json:
            click.echo(_json_line(_as_json(output)))
            continue
        for completion in output.outputs:
            click.echo(_heading(index, completion, output, ending(llm, output, completion, params)), err=True)
            click.echo(completion.text)
    if not quiet:
        click.echo(summary(llm, outputs, params), err=True)
    return any(output.error is not None for output in outputs)


def _heading(index: int, completion: CompletionOutput, output: RequestOutput, reason: str | None) -> str:
    numbered = f"prompt {index}" + (f", completion {completion.index}" if len(output.outputs) > 1 else "")
    failed = f"error: {named_by_flags(output.error.message, of_request=True)}" if output.error is not None else None
    return f"--- {numbered} ({failed or reason or completion.finish_reason})"


def _json_line(record: dict[str, Any]) -> str:
    """One line of JSON; bytes of the command line that are no text become a question mark."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace").decode()


def _as_json(output: RequestOutput) -> dict[str, Any]:
    record: dict[str, Any] = {
        "prompt": output.prompt,
        "prompt_token_ids": output.prompt_token_ids,
        "outputs": [_completion_as_json(completion) for completion in output.outputs],
        "num_cached_tokens": output.num_cached_tokens,
        "metrics": asdict(output.metrics) if output.metrics is not None else None,
    }
    if output.error is not None:
        record["error"] = asdict(output.error)
    return record


def _completion_as_json(completion: CompletionOutput) -> dict[str, Any]:
    total = completion.cumulative_logprob
    record: dict[str, Any] = {
        "index": completion.index,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "cumulative_logprob": None if total is None else finite_logprob(total),
    }
    if completion.logprobs is not None:
        record["logprobs"] = [
            {
                str(token_id): {**asdict(entry), "logprob": finite_logprob(entry.logprob)}
                for token_id, entry in position.items()
            }
            for position in completion.logprobs
        ]
    return record
