"""A walkthrough as text for people: the table of steps, then the same as blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from unicodedata import combining, east_asian_width

from octavo.explain.walkthrough import BlockRow, RequestStory, StepRow, Walkthrough
from octavo.wording import counted

BEFORE, NEW, EMPTY = "█", "▓", "░"
"""A slot that held a token before the step, one that the step wrote, one that holds none."""
_FED_WIDTH, _HELD_WIDTH, _CELL_WIDTH = 38, 40, 10
_MOST_LONG_CELLS = 4
"""Answers beside each other that have room for what was fed and what was made."""
_BAR_WIDTH = 16
_MOST_BLOCKS = 12
"""Blocks of one step that are listed one by one."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line, and whether it is a heading."""

    text: str
    is_heading: bool = False


def walkthrough_lines(story: Walkthrough) -> Iterator[Line]:
    """Yield the whole text, line by line."""
    lines = _alone_lines(story) if story.num_completions == 1 else _batch_lines(story)
    yield from lines
    yield Line("")
    yield Line("Checked", is_heading=True)
    for check in story.checks:
        yield Line(f"  {'yes' if check.holds else 'NO '}  {check.text}")


def _alone_lines(story: Walkthrough) -> Iterator[Line]:
    """Tell of one prompt and its answer."""
    (request,) = story.requests
    num_output = len(request.output_token_ids[0])
    prompt = counted(len(request.prompt_token_ids), "prompt token")
    yield Line(f"{story.model}: {prompt} in, {counted(num_output, 'token')} out", is_heading=True)
    yield Line(_quoted(story.text(*request.prompt_token_ids), 96))
    yield Line(_cut("token ids " + " ".join(map(str, request.prompt_token_ids)), 98))
    yield Line("")
    yield Line("Step by step", is_heading=True)
    names = _step_names(story.steps)
    table = [["step", "tokens fed", "token made", "in the KV cache after it"]]
    for name, row in zip(names, story.steps, strict=True):
        held = _known(request, row)[: row.num_cached_after]
        table.append([name, _fed(story, row), _made(story, row), _held(story, held)])
    yield from _table(table)
    yield Line("")
    yield from _moral(request, story.steps)
    yield Line("")
    yield Line(f"The same as blocks of {story.block_size} tokens", is_heading=True)
    yield Line(f"{BEFORE} held before the step   {NEW} written by it   {EMPTY} empty")
    table = [["step", "block", "slots", "filled", "users", "hash"]]
    for name, row in zip(names, story.steps, strict=True):
        table += _block_table(name, row, story.block_size)
    yield from _table(table)


def _moral(request: RequestStory, rows: Sequence[StepRow]) -> Iterator[Line]:
    """Say in words what the table shows."""
    num_decodes = sum(row.kind == "decode" for row in rows)
    num_prefills = sum(row.kind == "prefill" for row in rows)
    num_prompt = len(request.prompt_token_ids)
    if request.num_cached_tokens:
        yield Line(
            f"Of the prompt, {counted(request.num_cached_tokens, 'token')} came from the cache and need not be fed."
        )
    if num_prefills == 1:
        fed = num_prompt - request.num_cached_tokens
        yield Line(f"The prefill feeds {counted(fed, 'token')} at once and makes the first one of the answer.")
    else:
        yield Line(f"The prompt is fed in {num_prefills} chunks; the last of them makes the first token of the answer.")
    if num_decodes:
        yield Line("Each decode feeds the token made before it, reads the rest from the cache, and makes one more.")
    held = rows[-1].num_cached_after if rows else 0
    total = f"{num_prompt} + {held - num_prompt} = {counted(held, 'token')}"
    yield Line(f"The last token is made and never fed: the cache ends at {total}.")


def _block_table(name: str, row: StepRow, block_size: int) -> list[list[str]]:
    """Return the lines of the blocks that a step wrote."""
    touched = [block for block in row.blocks if block.num_new]
    lines = [
        [
            name if index == 0 else "",
            f"{_group_mark(row, block)}{block.block_id}",
            slot_bar(block, block_size),
            f"{block.num_filled}/{block_size}",
            str(block.ref_cnt),
            block.hash or "",
        ]
        for index, block in enumerate(touched[:_MOST_BLOCKS])
    ]
    if len(touched) > _MOST_BLOCKS:
        lines.append(["", "", f"and {len(touched) - _MOST_BLOCKS} more", "", "", ""])
    return lines


def slot_bar(block: BlockRow, block_size: int) -> str:
    """Return a picture of a block's slots, at most 16 signs wide."""
    width = min(block_size, _BAR_WIDTH)
    filled = -(-block.num_filled * width // block_size)
    new = min(filled, -(-block.num_new * width // block_size))
    return BEFORE * (filled - new) + NEW * new + EMPTY * (width - filled)


def _group_mark(row: StepRow, block: BlockRow) -> str:
    """Return which table a block is in, where a request has several."""
    return f"{block.group}:" if row.blocks[-1].group else ""


def _batch_lines(story: Walkthrough) -> Iterator[Line]:
    """Tell of several answers that were made together."""
    keys = sorted({(row.request, row.completion) for row in story.steps})
    num_prompts = len(story.requests)
    title = f"{story.model}: {counted(num_prompts, 'prompt')}, {counted(len(keys), 'answer')}, made together"
    yield Line(title, is_heading=True)
    for index, request in enumerate(story.requests):
        text = _quoted(story.text(*request.prompt_token_ids), 60)
        cached = f", {request.num_cached_tokens} of them cached" if request.num_cached_tokens else ""
        yield Line(f"  request {index}: {counted(len(request.prompt_token_ids), 'token')}{cached}  {text}")
    yield Line("")
    yield Line("Who is in each step: tokens fed → token made", is_heading=True)
    table = [["step", "tokens", *(answer_name(story, *key) for key in keys)]]
    for step in sorted({row.step for row in story.steps}):
        rows = {(row.request, row.completion): row for row in story.steps if row.step == step}
        cells = [_cell(story, rows.get(key), is_short=len(keys) > _MOST_LONG_CELLS) for key in keys]
        table.append([str(step), str(sum(len(row.input_token_ids) for row in rows.values())), *cells])
    yield from _table(table)
    yield Line("")
    yield from _shared_lines(story)


def _shared_lines(story: Walkthrough) -> Iterator[Line]:
    """Show the blocks at the step in which the most were in use, and who uses them."""
    users: dict[int, dict[tuple[int, int], tuple[BlockRow, list[str]]]] = {}
    for row in story.steps:
        blocks = users.setdefault(row.step, {})
        for block in row.blocks:
            name = answer_name(story, row.request, row.completion)
            blocks.setdefault((block.group, block.block_id), (block, []))[1].append(name)
    if not users:
        return
    fullest = max(users, key=lambda step: len(users[step]))
    yield Line(f"Blocks of {story.block_size} tokens after step {fullest}", is_heading=True)
    yield Line(f"{BEFORE} held before the step   {NEW} written by it   {EMPTY} empty")
    table = [["block", "slots", "filled", "users", "", "hash"]]
    several = any(group for group, _ in users[fullest])
    for (group, block_id), (block, names) in sorted(users[fullest].items()):
        mark = f"{group}:" if several else ""
        table.append(
            [
                f"{mark}{block_id}",
                slot_bar(block, story.block_size),
                f"{block.num_filled}/{story.block_size}",
                ", ".join(names),
                "shared" if len(names) > 1 else "",
                block.hash or "",
            ]
        )
    yield from _table(table)
    saved = sum(len(names) - 1 for _, names in users[fullest].values())
    if saved:
        yield Line("")
        yield Line(f"Sharing saves {counted(saved, 'block')}: they would be there once more for each further user.")


def _cell(story: Walkthrough, row: StepRow | None, *, is_short: bool) -> str:
    if row is None:
        return ""
    made = "…" if row.output_token_id is None else _quoted(story.text(row.output_token_id), _CELL_WIDTH)
    if row.kind == "decode":
        return made if is_short else f"{_quoted(story.text(*row.input_token_ids), _CELL_WIDTH)} → {made}"
    kind = f"{row.kind} {len(row.input_token_ids)}" if row.input_token_ids else row.kind
    return kind if is_short else f"{kind} → {made}"


def answer_name(story: Walkthrough, request: int, completion: int) -> str:
    """Return what to call one answer, as short as it can be told apart."""
    if len(story.requests[request].output_token_ids) == 1:
        return f"request {request}"
    return f"answer {completion}" if len(story.requests) == 1 else f"request {request}.{completion}"


def _step_names(rows: Sequence[StepRow]) -> list[str]:
    """Number the steps of a kind, where there are several."""
    names, seen = [], dict.fromkeys((row.kind for row in rows), 0)
    for row in rows:
        seen[row.kind] += 1
        several = row.kind == "decode" or sum(other.kind == row.kind for other in rows) > 1
        names.append(f"{row.kind} {seen[row.kind]}" if several else row.kind)
    return names


def _known(request: RequestStory, row: StepRow) -> tuple[int, ...]:
    return request.prompt_token_ids + request.output_token_ids[row.completion]


def _fed(story: Walkthrough, row: StepRow) -> str:
    quoted = " ".join(_quoted(story.text(token_id), 20) for token_id in row.input_token_ids)
    return f"{len(row.input_token_ids):>3}  {_cut(quoted, _FED_WIDTH)}"


def _made(story: Walkthrough, row: StepRow) -> str:
    if row.output_token_id is None:
        return "none yet"
    return f"{_quoted(story.text(row.output_token_id), 20)} ({row.output_token_id})"


def _held(story: Walkthrough, token_ids: Sequence[int]) -> str:
    text = _escaped(story.text(*token_ids))
    end = text[-_HELD_WIDTH:]
    while _columns(end) > _HELD_WIDTH - (end != text):
        end = end[1:]
    return f"{len(token_ids):>3}  {'…' * (end != text)}{end}"


def _escaped(text: str) -> str:
    """Return text on one line, as Python would write it but for quotes."""
    return repr(text)[1:-1].replace("\\'", "'").replace('\\"', '"')


def _quoted(text: str, width: int) -> str:
    return '"' + _cut(_escaped(text), width).replace('"', '\\"') + '"'


def _cut(text: str, width: int) -> str:
    """Return text that is at most so many columns wide, with a mark where it was cut."""
    kept = ""
    for sign in text:
        if _columns(kept + sign) > width:
            return (kept if _columns(kept) < width else kept[:-1]) + "…"
        kept += sign
    return kept


def _columns(text: str) -> int:
    """Return how many columns of a terminal a text takes: signs of East Asian scripts take two, accents none."""
    return sum(0 if combining(sign) else 1 + (east_asian_width(sign) in "WF") for sign in text)


def _table(rows: Sequence[Sequence[str]]) -> Iterator[Line]:
    """Yield rows with columns under each other; the first is the heading, with a rule below it."""
    widths = [max(_columns(row[column]) for row in rows) for column in range(len(rows[0]))]
    for index, row in enumerate(rows):
        cells = [cell + " " * (width - _columns(cell)) for cell, width in zip(row, widths, strict=True)]
        yield Line("  ".join(cells).rstrip(), index == 0)
        if index == 0:
            yield Line("  ".join("─" * width for width in widths))
