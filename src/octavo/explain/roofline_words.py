"""What the figures of a roofline say, in sentences. Pure functions of the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.explain.roofline import RooflineStep


def sentences(steps: Sequence[RooflineStep], knee: int | None, context_len: int | None) -> list[str]:
    """Return what follows from the steps, the knee and the context at which attention takes over."""
    return [*_about_products(knee), *_about_batches(steps), *_about_attention(steps, context_len)]


def _about_products(knee: int | None) -> Iterator[str]:
    if knee is None:
        yield "At no batch size do the matrix products take longer to compute than their weights take to read."
    elif knee == 1:
        yield "Even a single request's matrix products take longer to compute than their weights take to read."
    else:
        yield (
            f"The knee lies at B = {knee}: up to there a step's matrix products wait for their weights, and a further "
            "request is nearly free; past it they wait for arithmetic, and each request takes its own time."
        )


def _about_batches(steps: Sequence[RooflineStep]) -> Iterator[str]:
    first, last = steps[0], steps[-1]
    if first is last:
        return
    growth = last.batch_size / first.batch_size
    bytes_growth, limit_growth = last.bytes / first.bytes, last.limit_s / first.limit_s
    text = (
        f"From B = {first.batch_size} to {last.batch_size} a step makes {growth:,.0f} times the tokens, moves "
        f"{bytes_growth:,.1f} times the bytes, and needs {limit_growth:,.1f} times the time at least"
    )
    if first.step_s and last.step_s:
        text += f"; it took {last.step_s / first.step_s:,.1f} times"
    yield text + "."


def _about_attention(steps: Sequence[RooflineStep], context_len: int | None) -> Iterator[str]:
    first, last = steps[0], steps[-1]
    if first.attention_intensity is None or last.attention_intensity is None:
        return
    text = f"Attention does {first.attention_intensity:.2g} operations for each byte at B = {first.batch_size}"
    if first is not last:
        text += f" and {last.attention_intensity:.2g} at B = {last.batch_size}"
    yield text + ": every request reads keys and values of its own, so batching does not help it."
    if context_len is None:
        yield f"At B = {last.batch_size} the matrix products are most of the work at every context the model allows."
    else:
        yield f"At B = {last.batch_size}, past {context_len:,} tokens of context attention takes longer than they do."
