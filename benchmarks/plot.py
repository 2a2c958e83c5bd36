"""Lines over points, as SVG text: enough for a plot in a report, without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 640, 360, 60, 46, 34, 70
_COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#8c564b")


def line_plot(title: str, x_label: str, y_label: str, series: Mapping[str, Points]) -> str:
    """Return an SVG with one line for each series; both axes begin at 0."""
    x_max = _round_up(max(x for points in series.values() for x, _ in points))
    y_max = _round_up(max(y for points in series.values() for _, y in points))

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + x / x_max * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - y / y_max * (_HEIGHT - _BOTTOM - _TOP),
        )

    def text(x: float, y: float, content: str, anchor: str = "middle") -> str:
        return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(content)}</text>'

    def parts() -> Iterator[str]:
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
            'font-family="sans-serif" font-size="12">'
        )
        yield f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>'
        yield text(_WIDTH / 2, 20, title)
        for tick in range(5):
            x, y = x_max * tick / 4, y_max * tick / 4
            (left, height), (right, _), (column, floor) = place(0, y), place(x_max, y), place(x, 0)
            yield f'<path d="M{left:.1f} {height:.1f}H{right:.1f}" stroke="#ddd"/>'
            yield text(left - 6, height + 4, f"{y:g}", "end")
            yield text(column, floor + 16, f"{x:g}")
        yield text(_WIDTH / 2, _HEIGHT - 8, x_label)
        yield text(14, _TOP - 10, y_label, "start")
        for (name, points), color in zip(series.items(), _COLORS, strict=False):
            places = [place(x, y) for x, y in points]
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            yield f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>'
            yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in places)
            yield text(places[-1][0] + 8, places[-1][1] + 4, name, "start")
        yield "</svg>"

    return "\n".join(parts()) + "\n"


def _round_up(value: float) -> float:
    """Return the next number that divides well by four."""
    magnitude = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(
        step * magnitude for step in (1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 6.0, 8.0, 10.0) if step * magnitude >= value
    )
