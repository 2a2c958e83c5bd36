"""`octavo bench`: measure the engine. Flags and their meanings are those of `vllm bench` where it has them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from octavo.cli.engine_flags import EngineCommand, engine_flags, given_engine_options
from octavo.cli.model_option import takes_model
from octavo.cli.option_types import ApiKey, JsonObject, WholeNumbers

if TYPE_CHECKING:
    from octavo.bench.report import Report
    from octavo.bench.workload import Workload
    from octavo.llm import LLM

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group("bench", short_help="Measure speed: of jobs, of kernels, of the start, of a server.")
def command() -> None:
    """Measure speed: of whole jobs, of one batch, of each kernel, of the start, of a server.

    Each prints a table. With --json the last line of stdout is one JSON document: the recipe to repeat the
    measurement, and the figures. Measure on an idle machine.
    """


def _shared_flags(needs_model: bool = True) -> Callable[[Command], Command]:
    """Add what every benchmark takes."""

    def add(decorated: Command) -> Command:
        decorated = engine_flags(decorated)
        decorated = click.option("-q", "--quiet", is_flag=True, help="No progress.")(decorated)
        decorated = click.option("--json", "as_json", is_flag=True, help="End with one line of JSON.")(decorated)
        return takes_model(required=needs_model)(decorated)

    return add


def _dataset_flags(decorated: Command) -> Command:
    """Add what says which requests to make."""
    for add in reversed(
        [
            click.option("--dataset-name", type=click.Choice(["random", "custom"]), default="random", show_default=True,
                         help="Random token ids, or the prompts of a file."),
            click.option("--dataset-path", help='File with one JSON object a line: {"prompt": "...", "output_tokens": '
                         "100}; --output-len where there is no output_tokens."),
            click.option("--input-len", "--random-input-len", "input_len", type=int, default=128, show_default=True,
                         help="Tokens of each random prompt."),
            click.option("--output-len", "--random-output-len", "output_len", type=int, default=128, show_default=True,
                         help="Tokens to generate for each prompt."),
            click.option("--num-prompts", type=int, help="Requests.  [default: 64, or all of the file]"),
            click.option("--length-sigma", type=float, default=0.0, show_default=True,
                         help="Lengths vary: log-normal with this sigma, --input-len and --output-len being the "
                         "medians."),
        ]
    ):  # fmt: skip
        decorated = add(decorated)
    return decorated


@command.command("throughput", cls=EngineCommand)
@_shared_flags()
@_dataset_flags
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top", is_flag=True, help="Show requests, blocks and speed on stderr while it runs, as `octavo top`.")
def throughput(model: str, as_json: bool, quiet: bool, top: bool, **flags: Any) -> None:
    """Serve many requests that arrive at once, until all are done."""
    from octavo.bench.throughput import run_throughput

    options = given_engine_options(flags)
    report = run_throughput(
        model,
        options,
        _workload(flags),
        temperature=flags["temperature"],
        show_progress=_shows_progress(quiet) and not top,
        watch=_watcher(model) if top else None,
    )
    _show(report, as_json)


@command.command("latency", cls=EngineCommand)
@_shared_flags()
@click.option("--input-len", type=int, default=32, show_default=True, help="Tokens of each prompt.")
@click.option("--output-len", type=int, default=128, show_default=True, help="Tokens to generate for each prompt.")
@click.option("--batch-size", type=int, default=8, show_default=True, help="Requests of the batch.")
@click.option("--num-iters", type=int, default=10, show_default=True, help="How often the batch is run.")
@click.option("--num-iters-warmup", type=int, default=3, show_default=True, help="Runs before, which do not count.")
def latency(model: str, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Run one batch again and again, each time with new prompts."""
    from octavo.bench.latency import LatencyRuns, run_latency

    runs = LatencyRuns(flags["batch_size"], flags["num_iters"], flags["num_iters_warmup"])
    report = run_latency(
        model,
        given_engine_options(flags),
        runs,
        input_len=flags["input_len"],
        output_len=flags["output_len"],
        seed=flags["seed"] or 0,
        show_progress=_shows_progress(quiet),
    )
    _show(report, as_json)


@command.command("kernels", cls=EngineCommand)
@_shared_flags(needs_model=False)
@click.option(
    "--batch-sizes",
    type=WholeNumbers(),
    default="1,8,64",
    show_default=True,
    help="Decoding requests of a step, separated by commas.",
)
@click.option("--context-len", type=int, default=256, show_default=True, help="Tokens of each of them.")
@click.option(
    "--input-len", type=int, default=512, show_default=True, help="Tokens of the prompt that is one step more."
)
@click.option(
    "--min-seconds", type=float, default=0.1, show_default=True, help="Time spent on each measurement, at least."
)
@click.option(
    "--formats",
    default="Q4_1,Q4_K,Q6_K,Q8_0,BF16",
    show_default=True,
    help="Weight formats to measure where no model is given.",
)
def kernels(model: str | None, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Run each kind of op by itself, beside the peaks of the machine measured in the same second.

    Without a model: the shapes of a small one, with random weights in several formats.
    """
    from octavo.bench.kernels import KernelSteps, run_kernels

    steps = KernelSteps(flags["batch_sizes"], flags["context_len"], flags["input_len"], flags["min_seconds"])
    formats = [name.strip() for name in flags["formats"].split(",")]
    options = given_engine_options(flags)
    _show(run_kernels(model, options, steps, formats=formats, show_progress=_shows_progress(quiet)), as_json)


@command.command("serve")
@click.option("--base-url", default="http://127.0.0.1:8000", show_default=True, help="Where the server is.")
@click.option("--backend", type=click.Choice(["openai", "openai-chat", "vllm"]), default="openai", show_default=True,
              help="Chat sends messages, to /v1/chat/completions.")  # fmt: skip
@click.option("--endpoint", help="Path of the API.  [default: /v1/completions, or that of the backend]")
@click.option("-m", "--model", help="What the server calls the model.  [default: its first]")
@click.option("--tokenizer", help="What random prompts are drawn from: a model in any form.  [default: common words]")
@_dataset_flags
@click.option("--request-rate", type=float, default=float("inf"), show_default=True, help="Requests a second.")
@click.option("--burstiness", type=float, default=1.0, show_default=True, help="1: a Poisson process; less: bursts.")
@click.option("--max-concurrency", type=int, help="Requests that are open at once.  [default: all]")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--ignore-eos", is_flag=True, help="Ask for all tokens (vLLM's and Octavo's servers know how).")
@click.option("--extra-body", type=JsonObject(), default="{}", help="Further fields of each request, as a JSON object.")
@click.option("--goodput", multiple=True, help="Limit of a good answer in milliseconds: ttft:200, tpot:50, e2el:9000.")
@click.option("--num-warmups", type=int, default=0, show_default=True, help="Requests before, which do not count.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of prompts and arrivals.")
@click.option("--api-key", type=ApiKey(), envvar=["OCTAVO_API_KEY", "OPENAI_API_KEY"],
              help="Sent as a bearer token.  [default: $OCTAVO_API_KEY, or $OPENAI_API_KEY]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="End with one line of JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def serve(as_json: bool, quiet: bool, **flags: Any) -> None:
    """Put load on a server that speaks OpenAI's API, and measure what its clients wait for."""
    from tqdm import tqdm

    from octavo.bench.serve import Load, RequestForm, parse_goodput, run_serve
    from octavo.bench.serve_client import Target

    path = "/v1/chat/completions" if flags["backend"] == "openai-chat" else "/v1/completions"
    headers = {"Authorization": f"Bearer {flags['api_key']}"} if flags["api_key"] else {}
    target = Target(flags["base_url"], flags["endpoint"] or path, headers)
    form = RequestForm(flags["model"], flags["temperature"], flags["ignore_eos"], flags["extra_body"])
    load = Load(flags["request_rate"], flags["burstiness"], flags["max_concurrency"], flags["seed"])
    workload = _workload(flags)
    with tqdm(desc="Served", unit="req", total=workload.num_prompts, disable=not _shows_progress(quiet)) as bar:
        report = run_serve(
            target, form, workload, load, tokenizer=flags["tokenizer"], num_warmups=flags["num_warmups"],
            goodput_ms=parse_goodput(flags["goodput"]), on_done=bar.update,
        )  # fmt: skip
    _show(report, as_json)


@command.command("startup", cls=EngineCommand)
@_shared_flags()
@click.option("--num-iters", type=int, default=5, show_default=True, help="Starts that count.")
def startup(model: str, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Start fresh processes, from nothing to the first token."""
    from octavo.bench.startup import run_startup

    options = given_engine_options(flags)
    _show(run_startup(model, options, num_iters=flags["num_iters"], show_progress=_shows_progress(quiet)), as_json)


def _workload(flags: dict[str, Any]) -> Workload:
    from octavo.bench.workload import Workload

    names = ("dataset_name", "dataset_path", "input_len", "output_len", "num_prompts", "length_sigma")
    return Workload(**{name: flags[name] for name in names}, seed=flags["seed"] or 0)


def _watcher(model: str) -> Callable[[LLM], AbstractContextManager[None]]:
    """Return what shows an engine while it runs.

    Raises: `ConfigError` without rich.
    """
    from octavo.explain.views import require

    require("rich")
    from octavo.explain.watching import watching

    return lambda llm: watching(llm, f"octavo bench throughput -m {model}")


def _show(report: Report, as_json: bool) -> None:
    click.echo(report.table)
    if as_json:
        click.echo(report.to_json())


def _shows_progress(quiet: bool) -> bool:
    return not quiet and sys.stderr.isatty()
