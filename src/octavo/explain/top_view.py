"""An `EngineSnapshot` as a screen of the terminal: requests, blocks, the last minute. Needs rich."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from octavo.observe.history import SECONDS_KEPT
from octavo.wording import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from octavo.observe.snapshot import CacheGroupView, EngineSnapshot, PhaseSeconds, RequestView, SecondView

_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red", "bright_cyan", "bright_green", "bright_yellow",
            "bright_magenta", "bright_blue", "bright_red")  # fmt: skip
"""Of seats, in turn."""
_USED, _SHARED, _CACHED, _FREE = "■", "◆", "▒", "·"
_SHARED_STYLE = "bold white"
_MAP_ROWS = 8
_MOST_REQUESTS = 12
"""Requests that are listed, of those that run and of those that wait."""
_PHASES = (("schedule", "yellow"), ("forward", "cyan"), ("sample", "magenta"), ("output", "green"))
_BARS = " ▁▂▃▄▅▆▇█"
_LABEL_WIDTH, _SHARES_WIDTH = 16, 60
_PROGRESS_WIDTH = 20
_LIST_WIDTH = 50
"""Columns of the list of requests before its figures."""
_ID_LENGTH = 14


def top_screen(snapshot: EngineSnapshot, title: str, width: int) -> RenderableType:
    """Return the whole screen.

    Args:
        width: columns of the terminal.
    """
    inner = max(40, width - 4)
    return Group(
        _headline(snapshot, title),
        Panel(_requests(snapshot, inner), title="requests", title_align="left", border_style="dim"),
        *(
            Panel(_block_map(snapshot, group, inner), title=_group_title(group), title_align="left", border_style="dim")
            for group in snapshot.cache_groups
        ),
        Panel(_minute(snapshot, inner), title="the last minute", title_align="left", border_style="dim"),
    )


def _headline(snapshot: EngineSnapshot, title: str) -> Text:
    text = Text(title, style="bold")
    text.append(
        f"   {len(snapshot.running)} of {snapshot.max_num_seqs} seats, {len(snapshot.waiting)} waiting"
        f"   {snapshot.output_tokens_per_s:,.0f} tokens/s   {counted(snapshot.num_steps, 'step')}",
        style="not bold",
    )
    return text


def _requests(snapshot: EngineSnapshot, width: int) -> Table:
    """List who runs and who waits, with as many figures as there is room for."""
    figures = ("output", "prompt", "cached", "at most", "preempted")[: max(1, (width - _LIST_WIDTH) // 9)]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("", "request", "state", "progress"):
        table.add_column(name, no_wrap=True)
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    for requests in (snapshot.running, snapshot.waiting):
        for request in requests[:_MOST_REQUESTS]:
            counts = [request.num_output_tokens, request.num_prompt_tokens, request.num_cached_tokens]
            counts += [request.max_tokens, request.num_preemptions]
            table.add_row(
                Text(_USED, style=_colour(request)),
                _shortened(request.request_id) + (f" #{request.completion}" if request.completion else ""),
                f"seat {request.seat}" if request.waits_for is None else f"waits: {request.waits_for}",
                _progress(request),
                *(f"{count:,}" for count in counts[: len(figures)]),
            )
        if len(requests) > _MOST_REQUESTS:
            table.add_row("", f"and {len(requests) - _MOST_REQUESTS} more")
    return table


def _progress(request: RequestView) -> Text:
    """Return a bar: the prompt as far as it is computed, then the answer as far as it is made."""
    total = request.num_prompt_tokens + request.max_tokens
    prompt = round(_PROGRESS_WIDTH * request.num_prompt_tokens / total)
    prefilled = round(_PROGRESS_WIDTH * min(request.num_computed_tokens, request.num_prompt_tokens) / total)
    made = round(_PROGRESS_WIDTH * request.num_output_tokens / total)
    text = Text("━" * prefilled, style="dim")
    text.append("─" * (prompt - prefilled), style="dim")
    text.append("━" * min(made, _PROGRESS_WIDTH - prompt), style=_colour(request))
    text.append("─" * max(0, _PROGRESS_WIDTH - prompt - made), style="dim")
    return text


def _group_title(group: CacheGroupView) -> str:
    kind = {"full": "blocks", "sliding": "blocks of the sliding window", "state": "recurrent states"}[group.kind]
    shared = sum(block.ref_cnt > 1 for block in group.used)
    return f"{kind}: {len(group.used):,} used, {shared:,} of them shared, {len(group.cached):,} cached"


def _block_map(snapshot: EngineSnapshot, group: CacheGroupView, width: int) -> Group:
    """Draw every block that was ever used as a sign of its owner's colour, or several as one where they are many."""
    looks = _looks(snapshot, group)
    per_sign = -(-len(looks) // (width * _MAP_ROWS)) or 1
    signs = [_most_telling(looks[start : start + per_sign]) for start in range(0, len(looks), per_sign)]
    lines = []
    for start in range(0, len(signs), width):
        line = Text()
        for sign, style in signs[start : start + width]:
            line.append(sign, style=style)
        lines.append(line)
    legend = Text(f"{_USED} one request   ", style="dim")
    legend.append(_SHARED, style=_SHARED_STYLE)
    legend.append(f" shared   {_CACHED} cached   {_FREE} free")
    if per_sign > 1:
        legend.append(f"   {per_sign} blocks a sign")
    untouched = group.num_blocks - len(looks)
    legend.append(f"   {untouched:,} never used")
    if group.kind != "state":
        legend.append(f"   {snapshot.kv_cache.waste:.1%} of the slots in use are empty")
    return Group(*lines, legend)


def _looks(snapshot: EngineSnapshot, group: CacheGroupView) -> list[tuple[str, str]]:
    """Return sign and style of each block, up to the last that is in use or cached."""
    ids = [*(block.block_id for block in group.used), *group.cached]
    looks = [(_FREE, "dim")] * (max(ids, default=-1) + 1)
    for block_id in group.cached:
        looks[block_id] = (_CACHED, "dim")
    for block in group.used:
        is_shared = block.ref_cnt > 1
        style = _SHARED_STYLE if is_shared else _colour(snapshot.running[block.owners[0]])
        looks[block.block_id] = (_SHARED if is_shared else _USED, style)
    return looks


def _most_telling(looks: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Return how several blocks look as one: shared before used before cached before free, then the most frequent."""
    counts = Counter(looks)
    return max(counts, key=lambda look: (-(_SHARED + _USED + _CACHED + _FREE).index(look[0]), counts[look]))


def _minute(snapshot: EngineSnapshot, width: int) -> Group:
    """Draw tokens and batch size second by second, and where the time of the steps went."""
    return Group(
        _spark("tokens/s", snapshot.last_minute, lambda second: float(second.num_output_tokens), width),
        _spark("requests a step", snapshot.last_minute, lambda second: second.num_requests / second.num_steps, width),
        _phase_bar([second.phases for second in snapshot.last_minute], width),
    )


def _spark(name: str, seconds: Sequence[SecondView], value: Callable[[SecondView], float], width: int) -> Text:
    """Return a line of bars, the oldest second first; the second that has not ended is left out."""
    values = {second.age: value(second) for second in seconds if second.age}
    top = max(values.values(), default=0.0)
    ages = range(min(SECONDS_KEPT, width - _LABEL_WIDTH - 12), 0, -1)
    bars = "".join(_BARS[_level(values.get(age, 0.0), top)] for age in ages)
    text = Text(f"{name:<{_LABEL_WIDTH}}")
    text.append(bars, style="cyan")
    text.append(f"  at most {top:,.0f}", style="dim")
    return text


def _level(value: float, top: float) -> int:
    """Return the height of a bar; what is not nothing is seen."""
    return max(1, round(value / top * (len(_BARS) - 1))) if value > 0 else 0


def _phase_bar(phases: Sequence[PhaseSeconds], width: int) -> Text:
    """Return one bar split by phase, and the shares in words."""
    sums = {name: sum(getattr(entry, name) for entry in phases) for name, _ in _PHASES}
    total = sum(sums.values())
    text = Text(f"{'step time':<{_LABEL_WIDTH}}")
    if not total:
        return text
    room = max(8, min(30, width - _LABEL_WIDTH - _SHARES_WIDTH))
    for name, colour in _PHASES:
        text.append("█" * round(room * sums[name] / total), style=colour)
    for name, colour in _PHASES:
        text.append(f"  {name} {sums[name] / total:.1%}", style=colour)
    return text


def _shortened(request_id: str) -> str:
    """Return an id as its beginning and its end: servers give long ones."""
    return request_id if len(request_id) <= _ID_LENGTH else f"{request_id[:6]}…{request_id[-7:]}"


def _colour(request: RequestView) -> str:
    return "dim" if request.seat is None else _COLOURS[request.seat % len(_COLOURS)]
