"""What an experiment hands out: figures by policy, as a table and as JSON; a plot; and one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.bench.report import format_columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Figures = Mapping[str, Any]
"""By name; a name that ends in `_share` is a fraction."""


@dataclass(frozen=True, slots=True)
class LabReport:
    """One finished experiment."""

    title: str
    workload: str
    """What was run, on one line."""
    policies: Mapping[str, Figures]
    """In the order in which they are compared; each has `output_tokens_per_s`."""
    columns: Sequence[str]
    """The figures that the table shows."""
    summary: str
    draw: Callable[[Figure], None]
    """Fills a figure of matplotlib."""

    @property
    def table(self) -> str:
        """The figures, a row for each policy."""
        header = ["policy", *(column.removesuffix("_share").replace("_", " ") for column in self.columns)]
        rows = [
            [name, *(_cell(column, figures[column]) for column in self.columns)]
            for name, figures in self.policies.items()
        ]
        return format_columns(header, rows)

    def to_json(self) -> str:
        """Return one object keyed by policy, on one line."""
        return json.dumps(self.policies)


def _cell(column: str, value: Any) -> Any:
    return f"{value:.1%}" if column.endswith("_share") and value is not None else value
