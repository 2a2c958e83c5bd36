"""`octavo generate`: answer prompts, as text while it is made or as one line of JSON a prompt."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any

import click

from octavo.cli.engine_flags import EngineCommand, engine_flags, given_engine_options
from octavo.cli.model_option import takes_model
from octavo.outputs import finite_logprob
from octavo.sampling_params import RequestOutputKind, SamplingParams
from octavo.wording import counted

if TYPE_CHECKING:
    from octavo.llm import LLM
    from octavo.outputs import CompletionOutput, RequestOutput

_DEFAULT_MAX_TOKENS = 256
"""A command line is for reading answers; the API's default of 16 cuts them short."""
_SAMPLING_FLAGS = (
    "n", "temperature", "top_p", "top_k", "min_p", "max_tokens", "min_tokens", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "ignore_eos", "skip_special_tokens", "logprobs", "include_stop_str_in_output", "stop",
    "stop_token_ids", "bad_words",
)  # fmt: skip


@click.command("generate", cls=EngineCommand)
@takes_model
@click.option("-p", "--prompt", "prompts", multiple=True, help="A prompt; may be given several times.")
@click.option(
    "--prompt-file", type=click.File("r", encoding="utf-8"), help="One prompt a line, in UTF-8; - reads stdin."
)
@click.option("--chat/--no-chat", default=False, help="Treat each prompt as a user's message.")
@click.option("--system", help="System message before each prompt; only with --chat.")
@click.option("--json", "as_json", is_flag=True, help="Write one line of JSON a prompt.")
@click.option("-q", "--quiet", is_flag=True, help="No progress and no summary.")
@click.option("--n", type=int, help="Completions of each prompt.  [default: 1]")
@click.option("--max-tokens", type=int, help=f"Tokens of each completion.  [default: {_DEFAULT_MAX_TOKENS}]")
@click.option("--min-tokens", type=int, help="Do not end before this many tokens.")
@click.option("--temperature", type=float, help="0 is greedy.  [default: the model's]")
@click.option("--top-p", type=float, help="Share of probability to sample from.  [default: the model's]")
@click.option("--top-k", type=int, help="Number of tokens to sample from; 0 is all.  [default: the model's]")
@click.option("--min-p", type=float, help="Least probability relative to the largest.  [default: the model's]")
@click.option("--sampling-seed", type=int, help="Seed of each request; --seed is the engine's.")
@click.option("--presence-penalty", type=float, help="Above 0 discourages tokens that the output has.")
@click.option("--frequency-penalty", type=float, help="The same, once more for each time.")
@click.option("--repetition-penalty", type=float, help="Above 1 discourages tokens of prompt and output.")
@click.option("--logprobs", type=int, help="Logprobs per token, in the JSON.")
@click.option("--stop", multiple=True, help="Text that ends the output; may be given several times.")
@click.option("--stop-token-id", "stop_token_ids", type=int, multiple=True, help="Id of a token that ends the output.")
@click.option("--bad-word", "bad_words", multiple=True, help="Text that must not appear; may be given several times.")
@click.option("--ignore-eos/--no-ignore-eos", default=None, help="Go on after the end-of-text token.")
@click.option(
    "--skip-special-tokens/--no-skip-special-tokens", default=None, help="Leave them out of the text.  [default: True]"
)
@click.option(
    "--include-stop-str-in-output/--no-include-stop-str-in-output", default=None, help="Keep what ended the output."
)
@engine_flags
@click.pass_context
def command(
    ctx: click.Context,
    /,
    model: str,
    prompts: Sequence[str],
    prompt_file: IO[str] | None,
    chat: bool,
    system: str | None,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> None:
    """Generate text for one or more prompts.

    A single prompt is answered while it is generated, then summed up in two lines on stderr.
    """
    texts = [*prompts, *_read_prompts(prompt_file)]
    if not texts:
        missing = "give at least one prompt, with -p, --prompt or --prompt-file (- is stdin)"
        raise click.UsageError(missing if prompt_file is None else "the prompt file is empty")
    if system is not None and not chat:
        raise click.UsageError("--system needs --chat: a text alone has no system message")
    from octavo.llm import LLM

    sampling = {name: flags[name] for name in _SAMPLING_FLAGS if flags[name] not in (None, ())}
    if flags["sampling_seed"] is not None:
        sampling["seed"] = flags["sampling_seed"]
    options = {"use_tqdm_on_load": not quiet, **given_engine_options(flags)}
    with LLM(model, **options) as llm:
        params = sampling_params(llm, sampling)
        if len(texts) == 1 and params.n == 1 and not as_json:
            failed = _stream_one(llm, _prompt(llm, texts[0], chat, system), params, quiet, chat)
        else:
            failed = _generate_all(llm, [_prompt(llm, text, chat, system) for text in texts], params, as_json, quiet)
    ctx.exit(1 if failed else 0)


def _read_prompts(prompt_file: IO[str] | None) -> list[str]:
    try:
        return [line.rstrip("\n") for line in prompt_file or ()]
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the prompt file is not UTF-8 text: {error.reason}") from error


def sampling_params(llm: LLM, given: dict[str, Any]) -> SamplingParams:
    """Return the model's defaults with what was given on the command line.

    More tokens than the model has room for are no error, as in the API; here it is said.
    """
    params = llm.get_default_sampling_params()
    for name, value in {"max_tokens": _DEFAULT_MAX_TOKENS, **given}.items():
        setattr(params, name, list(value) if isinstance(value, tuple) else value)
    params.verify()
    limit = llm.llm_engine.max_model_len
    if given.get("max_tokens") is not None and given["max_tokens"] >= limit:
        room = f"prompt and answer together have {counted(limit, 'token')} (--max-model-len)"
        click.echo(f"Note: --max-tokens {given['max_tokens']} is more than there is room for: {room}.", err=True)
    return params


def _prompt(llm: LLM, text: str, chat: bool, system: str | None) -> Any:
    if not chat:
        return text
    messages = [{"role": "system", "content": system}] if system else []
    tokenizer = llm.get_tokenizer()
    rendered = tokenizer.apply_chat_template(
        [*messages, {"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )
    return {"prompt": rendered, "prompt_token_ids": tokenizer.encode(rendered, add_special_tokens=False)}


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
        click.echo(f"Error: {output.error.message}", err=True)
    elif not (has_text or chat or output.outputs[0].stop_reason) and llm.get_tokenizer().chat_template is not None:
        click.echo("Note: the model ended at once. It is made for conversations: try --chat.", err=True)
    if not quiet:
        click.echo(summary(llm, [output]), err=True)
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
            click.echo(_heading(index, completion, output), err=True)
            click.echo(completion.text)
    if not quiet:
        click.echo(summary(llm, outputs), err=True)
    return any(output.error is not None for output in outputs)


def _heading(index: int, completion: CompletionOutput, output: RequestOutput) -> str:
    numbered = f"prompt {index}" + (f", completion {completion.index}" if len(output.outputs) > 1 else "")
    ended = f"error: {output.error.message}" if output.error is not None else completion.finish_reason
    return f"--- {numbered} ({ended})"


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


def summary(llm: LLM, outputs: Sequence[RequestOutput]) -> str:
    """Two lines: tokens in and out with the speed from arrival to the last token, and how the KV cache was used."""
    stats = [output.metrics for output in outputs if output.metrics is not None]
    num_prompt = sum(len(output.prompt_token_ids or ()) for output in outputs)
    num_generated = sum(entry.num_generation_tokens for entry in stats)
    begin = min((entry.queued_ts for entry in stats), default=0.0)
    first = min((entry.first_token_ts for entry in stats), default=0.0)
    last = max((entry.last_token_ts for entry in stats), default=0.0)
    seconds = max(last - begin, 1e-9)
    speed = f"{num_generated / seconds:.0f} tokens/s"
    text = f"{counted(num_prompt, 'prompt token')}, {num_generated:,} generated in {seconds:.2f} s ({speed}"
    if len(outputs) == 1 and num_generated > 1:
        decode = (num_generated - 1) / max(last - first, 1e-9)
        text += f"; first token after {first - begin:.2f} s, then {decode:.0f} tokens/s"
    weights = ", ".join(f"{size / 1e6:.0f} MB {name}" for name, size in llm.llm_engine.weight_formats.items())
    return f"{text}), weights {weights}\n{llm.kv_cache_stats().summary()}"
