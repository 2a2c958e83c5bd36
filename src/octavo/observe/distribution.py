"""How long requests and steps take, and how large they are: counts between the edges that vLLM's dashboards expect."""

from __future__ import annotations

from bisect import bisect_left

LATENCY_EDGES = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
"""Seconds that a request, or a part of its life, takes."""
TTFT_EDGES = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
"""Seconds to the first token."""
ITL_EDGES = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
"""Seconds between two tokens."""
STEP_TOKEN_EDGES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Tokens of a step."""
COUNT_EDGES = (1, 2, 5, 10, 20)
"""Completions of a request."""
PREEMPTION_EDGES = (0, 1, 2, 5, 10, 20, 50, 100)


def request_token_edges(max_model_len: int) -> tuple[int, ...]:
    """Return 1, 2, 5, 10, … up to the longest request."""
    series = (digit * 10**power for power in range(len(str(max_model_len))) for digit in (1, 2, 5))
    return tuple(edge for edge in series if edge <= max_model_len)


class Distribution:
    """Counts values between edges; a value on an edge is counted below it.

    Written by one thread at a time. A reader on another may see the sum of one value more than the counts.
    """

    __slots__ = ("counts", "edges", "sum")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        """Between the edges; the last is above all."""
        self.sum = 0.0

    def observe(self, value: float, weight: int = 1) -> None:
        """Count a value `weight` times."""
        self.counts[bisect_left(self.edges, value)] += weight
        self.sum += value * weight
