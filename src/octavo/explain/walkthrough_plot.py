"""A walkthrough as a picture: a row for each step, a column for each position of the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.explain.views import new_figure, require, save_figure
from octavo.explain.walkthrough_text import answer_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from octavo.explain.walkthrough import StepRow, Walkthrough

_FED, _READ, _MADE = "#4c78a8", "#9aa5b1", "#d1495b"
_MOST_LABELLED = 40
"""Positions that have room for their token's text."""
_LABEL_LENGTH = 9


def plot_walkthrough(story: Walkthrough, path: str) -> None:
    """Draw all answers above each other: tokens fed are filled, those read from the cache hatched, new ones outlined.

    Raises: `ConfigError` without matplotlib, or for a format that cannot be written.
    """
    keys = sorted({(row.request, row.completion) for row in story.steps})
    rows = {key: [row for row in story.steps if (row.request, row.completion) == key] for key in keys}
    longest = max((row.num_cached_after + 1 for row in story.steps), default=1)
    heights = [len(rows[key]) + 1.2 for key in keys]
    figure = new_figure(min(24.0, 2.0 + 0.62 * longest), 1.2 + 0.42 * sum(heights))
    panels: Any = figure.subplots(len(keys), 1, squeeze=False, height_ratios=heights)
    for (axes,), key in zip(panels, keys, strict=True):
        _draw(axes, story, rows[key], longest)
        if len(keys) > 1:
            axes.set_title(answer_name(story, *key), loc="left", fontsize=9)
    patch = require("matplotlib.patches").Rectangle
    legend = [
        patch((0, 0), 1, 1, facecolor=_FED, label="fed in this step"),
        patch((0, 0), 1, 1, facecolor="white", edgecolor=_READ, hatch="////", label="read from the KV cache"),
        patch((0, 0), 1, 1, facecolor="white", edgecolor=_MADE, linewidth=1.6, label="made by this step"),
    ]
    figure.legend(handles=legend, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    save_figure(figure, path)


def _draw(axes: Axes, story: Walkthrough, rows: list[StepRow], longest: int) -> None:
    """Draw the steps of one answer, from the top down."""
    request, completion = story.requests[rows[0].request], rows[0].completion
    known = request.prompt_token_ids + request.output_token_ids[completion]
    labels = [_label(story.text(token_id)) for token_id in known] if longest <= _MOST_LABELLED else []
    patch = require("matplotlib.patches").Rectangle
    for y, row in enumerate(rows):
        for start, end in _cells(row, is_single=bool(labels)):
            is_fed = start >= row.num_cached_before
            style = {"facecolor": _FED} if is_fed else {"facecolor": "white", "edgecolor": _READ, "hatch": "////"}
            axes.add_patch(patch((start + 0.06, y + 0.1), end - start - 0.12, 0.8, linewidth=0.8, **style))
            if labels and is_fed:
                _write(axes, start, y, labels[start], "white")
        if row.output_token_id is not None:
            position = row.num_cached_after
            outline = patch((position + 0.06, y + 0.1), 0.88, 0.8, facecolor="white", edgecolor=_MADE, linewidth=1.6)
            axes.add_patch(outline)
            if labels:
                _write(axes, position, y, labels[position], _MADE)
    axes.set_xlim(0, longest)
    axes.set_ylim(len(rows), 0)
    axes.set_yticks([y + 0.5 for y in range(len(rows))], [f"{row.step}  {row.kind}" for row in rows], fontsize=8)
    if labels:
        axes.set_xticks([position + 0.5 for position in range(longest)], list(map(str, range(longest))), fontsize=7)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _cells(row: StepRow, *, is_single: bool) -> list[tuple[int, int]]:
    """Return the positions that a step read and fed, one by one or as two stretches, half-open."""
    if is_single:
        return [(position, position + 1) for position in range(row.num_cached_after)]
    stretches = [(0, row.num_cached_before), (row.num_cached_before, row.num_cached_after)]
    return [(start, end) for start, end in stretches if start < end]


def _write(axes: Axes, position: int, y: int, text: str, colour: str) -> None:
    axes.text(position + 0.5, y + 0.5, text, ha="center", va="center", fontsize=6, color=colour, parse_math=False)


def _label(text: str) -> str:
    """Return a token's text as it fits into a cell."""
    shown = text.replace(" ", "·").replace("\n", "↵")
    printable = "".join(sign if sign.isprintable() else "?" for sign in shown)
    return printable if len(printable) <= _LABEL_LENGTH else printable[: _LABEL_LENGTH - 1] + "…"
