"""From the records of a client to figures: what its requests waited for, and how many were served well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from octavo.bench.figures import Percentiles, percentiles_ms
from octavo.bench.serve_client import ServedRecord

GOODPUT_METRICS = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class ServeFigures:
    """What the JSON holds. None where nothing of the kind happened."""

    total_s: float
    num_requests: int
    """Served to their end."""
    num_failed: int
    num_prompt_tokens: int
    num_output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    goodput_requests_per_s: float | None
    """Requests that kept to every limit; None without limits."""
    max_concurrent_requests: int
    ttft_ms: Percentiles | None
    """From sending a request to its first text."""
    tpot_ms: Percentiles | None
    """Of each request, the mean time per output token after the first text."""
    itl_ms: Percentiles | None
    """Between two pieces of text of a request."""
    e2el_ms: Percentiles | None
    """From sending a request to the end of its answer."""
    mean_ttft_ms: float | None
    mean_tpot_ms: float | None
    mean_itl_ms: float | None
    mean_e2el_ms: float | None
    client_cpu_s: float
    """Processor time of this client: where server and client share a machine, the server lacked it."""


def serve_figures(
    records: Sequence[ServedRecord], seconds: float, *, limits_ms: Mapping[str, float], client_cpu_s: float
) -> ServeFigures:
    """Work out all figures.

    Args:
        seconds: from the first request to the end of the last.
        limits_ms: what a good answer may take, by the names of `GOODPUT_METRICS`.
    """
    served = [record for record in records if record.error is None and record.text_at]
    waits = [_waits(record) for record in served]
    num_prompt = sum(record.num_prompt_tokens for record in served)
    num_output = sum(record.num_output_tokens for record in served)
    itl = [later - sooner for record in served for sooner, later in pairwise(record.text_at)]
    ttft, e2el = ([wait[name] for wait in waits] for name in ("ttft", "e2el"))
    tpot = [wait["tpot"] for wait, record in zip(waits, served, strict=True) if record.num_output_tokens > 1]
    num_good = sum(all(wait[name] * 1e3 <= limit for name, limit in limits_ms.items()) for wait in waits)
    return ServeFigures(
        total_s=seconds,
        num_requests=len(served),
        num_failed=len(records) - len(served),
        num_prompt_tokens=num_prompt,
        num_output_tokens=num_output,
        requests_per_s=len(served) / seconds,
        output_tokens_per_s=num_output / seconds,
        total_tokens_per_s=(num_prompt + num_output) / seconds,
        goodput_requests_per_s=num_good / seconds if limits_ms else None,
        max_concurrent_requests=most_at_once(records),
        ttft_ms=percentiles_ms(ttft),
        tpot_ms=percentiles_ms(tpot),
        itl_ms=percentiles_ms(itl),
        e2el_ms=percentiles_ms(e2el),
        mean_ttft_ms=_mean_ms(ttft),
        mean_tpot_ms=_mean_ms(tpot),
        mean_itl_ms=_mean_ms(itl),
        mean_e2el_ms=_mean_ms(e2el),
        client_cpu_s=client_cpu_s,
    )


def most_at_once(records: Sequence[ServedRecord]) -> int:
    """Return how many requests were open at the same time, at most."""
    changes = [(record.sent_at, 1) for record in records] + [(record.ended_at, -1) for record in records]
    most = current = 0
    for _, change in sorted(changes):
        current += change
        most = max(most, current)
    return most


def _waits(record: ServedRecord) -> dict[str, float]:
    first = record.text_at[0] - record.sent_at
    whole = record.ended_at - record.sent_at
    return {"ttft": first, "e2el": whole, "tpot": (whole - first) / max(1, record.num_output_tokens - 1)}


def _mean_ms(seconds: Sequence[float]) -> float | None:
    return sum(seconds) / len(seconds) * 1e3 if seconds else None
