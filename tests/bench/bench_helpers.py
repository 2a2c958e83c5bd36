"""Steps and requests made by hand, in round numbers."""

from __future__ import annotations

from octavo.bench.figures import RequestRecord
from octavo.bench.recorder import StepRecord
from octavo.native.peaks import ThreadPeaks


def make_step(
    prefill: int = 0, decode: int = 0, *, seconds: float = 1.0, native: float = 0.5, follows: bool = True
) -> StepRecord:
    """A step of `decode` requests with one row each, and one with `prefill` rows."""
    rows = (1,) * decode + ((prefill,) if prefill else ())
    return StepRecord(
        num_tokens=prefill + decode,
        num_decode_tokens=decode,
        num_logit_rows=len(rows),
        num_computed_tokens=(0,) * len(rows),
        num_scheduled_tokens=rows,
        loop_seconds=seconds,
        native_seconds=native,
        follows=follows,
    )


def make_request(*, queued: float = 0.0, first: float = 1.0, last: float = 2.0, num_output: int = 2) -> RequestRecord:
    return RequestRecord(
        num_prompt_tokens=10,
        num_output_tokens=num_output,
        num_cached_tokens=0,
        num_preemptions=0,
        queued_at=queued,
        first_token_at=first,
        last_token_at=last,
    )


def make_peaks(int8: float = 1000.0, fp32: float = 100.0, bandwidth: float = 10.0) -> ThreadPeaks:
    return ThreadPeaks(2, int8, fp32, {1024: bandwidth, 4096: bandwidth})
