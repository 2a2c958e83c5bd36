"""`octavo bench serve`: load on a server that speaks OpenAI's API, whoever made it, and what its clients wait for."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from octavo.bench.report import Report, format_facts, make_recipe
from octavo.bench.serve_client import ServedRecord, Target, get_json, send
from octavo.bench.serve_figures import GOODPUT_METRICS, ServeFigures, serve_figures
from octavo.bench.workload import DEFAULT_NUM_PROMPTS, WorkItem, Workload
from octavo.errors import ConfigError
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.weights.hub import resolve_tokenizer_path

_LONGEST = 1 << 24
"""No limit: lengths are the server's to refuse."""
_WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state",
    "family", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system", "program",
    "question", "work", "night", "point", "home", "water", "room", "mother", "area", "money", "story", "fact",
)  # fmt: skip
"""One token each in most vocabularies; for random prompts where no tokenizer is known."""


@dataclass(frozen=True, slots=True)
class Load:
    """How requests arrive.

    Raises: `ConfigError` for values that mean nothing.
    """

    request_rate: float = math.inf
    """Requests a second; infinity sends all at once."""
    burstiness: float = 1.0
    """Shape of the gamma distribution of the gaps: 1 is a Poisson process, less comes in bursts."""
    max_concurrency: int | None = None
    """Requests that are open at once; others wait in the client."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("request_rate", "burstiness"):
            value = getattr(self, name)
            if math.isnan(value) or value <= 0:
                raise ConfigError(f"{name} must be above 0, got {value}.")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ConfigError(f"max_concurrency must be at least 1, got {self.max_concurrency}.")

    def arrivals(self, count: int) -> list[float]:
        """Return when each request is made, in seconds from the start."""
        if math.isinf(self.request_rate):
            return [0.0] * count
        rng, now, times = random.Random(self.seed), 0.0, []
        for _ in range(count):
            times.append(now)
            now += rng.gammavariate(self.burstiness, 1.0 / (self.request_rate * self.burstiness))
        return times


@dataclass(frozen=True, slots=True)
class RequestForm:
    """What every request says beside its prompt."""

    model: str | None = None
    """None asks the server."""
    temperature: float = 0.0
    ignore_eos: bool = False
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    def body(self, item: WorkItem, *, is_chat: bool) -> dict[str, Any]:
        """Return the body of a request."""
        prompt = {"messages": [{"role": "user", "content": item.prompt}]} if is_chat else {"prompt": item.prompt}
        return {
            **prompt,
            "model": self.model,
            "max_tokens": item.output_len,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if self.ignore_eos else {}),
            **self.extra_body,
        }


def run_serve(
    target: Target,
    form: RequestForm,
    workload: Workload,
    load: Load,
    *,
    tokenizer: str | None = None,
    num_warmups: int = 0,
    goodput_ms: Mapping[str, float] | None = None,
    on_done: Callable[[], object] = lambda: None,
) -> Report:
    """Send a workload to a server and report.

    Args:
        tokenizer: what random prompts are drawn from; default: the model's, where its name is a path.
        num_warmups: requests that are sent first and do not count, with random prompts of their own.
        goodput_ms: limits of a good answer.
        on_done: called after each request.

    Raises: `ConfigError`, also if no request could be served.
    """
    make = partial(_make_items, tokenizer=tokenizer or _local_tokenizer(form.model), is_chat=target.is_chat)
    items, warm_up = make(workload), make(workload.for_warm_up(num_warmups)) if num_warmups else []
    records, seconds, cpu, form = asyncio.run(_measure(target, form, items, load, warm_up, on_done))
    figures = serve_figures(records, seconds, limits_ms=goodput_ms or {}, client_cpu_s=cpu)
    errors = sorted({record.error for record in records if record.error is not None})
    if not figures.num_requests:
        raise ConfigError(f"no request was served by {target.base_url}: {errors[0] if errors else 'no text came'}.")
    described = {
        **asdict(workload), "num_prompts": len(items), **asdict(load), "base_url": target.base_url,
        "endpoint": target.endpoint, "model": form.model, "temperature": form.temperature,
        "ignore_eos": form.ignore_eos, "goodput_ms": dict(goodput_ms or {}),
    }  # fmt: skip
    described["request_rate"] = None if math.isinf(load.request_rate) else load.request_rate
    recipe = make_recipe(None, num_threads=1, isa="client", workload=described)
    return Report("serve", recipe, {**asdict(figures), "errors": errors[:10]}, _table(target, form, figures, errors))


async def _measure(
    target: Target,
    form: RequestForm,
    items: Sequence[WorkItem],
    load: Load,
    warm_up: Sequence[WorkItem],
    on_done: Callable[[], object],
) -> tuple[list[ServedRecord], float, float, RequestForm]:
    """Return the records, the seconds that all took, this process's own, and the form with the model's name."""
    if form.model is None:
        form = replace(form, model=await _first_model(target))
    bodies = [form.body(item, is_chat=target.is_chat) for item in items]
    await asyncio.gather(*(send(target, form.body(item, is_chat=target.is_chat)) for item in warm_up))
    places = asyncio.Semaphore(load.max_concurrency or len(bodies))
    began, cpu_began = time.monotonic(), time.process_time()

    async def send_at(arrival: float, body: Mapping[str, Any]) -> ServedRecord:
        await asyncio.sleep(max(0.0, began + arrival - time.monotonic()))
        async with places:
            record = await send(target, body)
        on_done()
        return record

    records = await asyncio.gather(*map(send_at, load.arrivals(len(bodies)), bodies))
    return records, time.monotonic() - began, time.process_time() - cpu_began, form


async def _first_model(target: Target) -> str:
    try:
        models = await get_json(target, "/v1/models")
        return str(models["data"][0]["id"])
    except OSError as error:
        raise ConfigError(
            f"no server answers at {target.base_url} ({error}); `octavo serve MODEL` starts one."
        ) from error
    except (EOFError, ValueError, LookupError, TypeError, RecursionError, asyncio.LimitOverrunError) as error:
        raise ConfigError(
            f"{target.base_url} does not say which model it serves ({error}): name it with --model."
        ) from error


def parse_goodput(limits: Sequence[str]) -> dict[str, float]:
    """Read limits as in "ttft:200": milliseconds. Raises: `ConfigError`."""
    parsed = {}
    for entry in limits:
        name, _, value = entry.partition(":")
        try:
            parsed[name] = float(value)
        except ValueError:
            name = ""
        if name not in GOODPUT_METRICS or not parsed[name] >= 0:
            known = ", ".join(GOODPUT_METRICS)
            raise ConfigError(f"goodput must be like ttft:200, with one of {known} and milliseconds, got {entry!r}.")
    return parsed


def _local_tokenizer(model: str | None) -> str | None:
    return model if model is not None and Path(model).exists() else None


def _make_items(workload: Workload, tokenizer: str | None, *, is_chat: bool) -> list[WorkItem]:
    """Return the requests; a chat takes text alone, so that token ids become what they spell."""
    if workload.dataset_name == "custom":
        return workload.read()
    if tokenizer is None:
        rng = random.Random(workload.seed)
        count = DEFAULT_NUM_PROMPTS if workload.num_prompts is None else workload.num_prompts
        prompts = (" ".join(rng.choices(_WORDS, k=workload.input_len)) for _ in range(count))
        return [WorkItem(prompt, workload.output_len) for prompt in prompts]
    vocabulary = Tokenizer.from_path(resolve_tokenizer_path(tokenizer, None, None))
    items = workload.items(vocabulary, _LONGEST)
    if not is_chat:
        return items
    return [WorkItem(vocabulary.decode(list(map(int, item.prompt))), item.output_len) for item in items]


def _table(target: Target, form: RequestForm, figures: ServeFigures, errors: Sequence[str]) -> str:
    facts: list[tuple[str, object]] = [
        ("server", target.base_url + target.endpoint),
        ("model", form.model),
        ("requests served, failed", f"{figures.num_requests:,}, {figures.num_failed:,}"),
        ("at once, at most", figures.max_concurrent_requests),
        ("prompt, output tokens in all", f"{figures.num_prompt_tokens:,}, {figures.num_output_tokens:,}"),
        ("total s", figures.total_s),
        ("requests/s", figures.requests_per_s),
        ("good requests/s", figures.goodput_requests_per_s),
        ("output tokens/s", figures.output_tokens_per_s),
        ("total tokens/s", figures.total_tokens_per_s),
        ("first token ms", figures.ttft_ms),
        ("per output token ms", figures.tpot_ms),
        ("between tokens ms", figures.itl_ms),
        ("whole request ms", figures.e2el_ms),
        ("client's CPU s", figures.client_cpu_s),
    ]
    return format_facts(facts + [("error", error) for error in errors[:3]])
