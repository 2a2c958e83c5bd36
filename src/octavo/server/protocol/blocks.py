"""An output as blocks, one after the other: a thought, a text, a tool call. The newer APIs answer in such blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from octavo.server.parsers.contract import CallPart, ReasoningPart, TextPart

if TYPE_CHECKING:
    from octavo.server.parsers.contract import OutputParser, Part

BlockKind = Literal["text", "reasoning", "call"]


@dataclass(slots=True)
class Block:
    """Parts of one kind without another between them; of calls, one."""

    index: int
    """Of the block in its answer, from 0."""
    kind: BlockKind
    call_id: str = ""
    name: str = ""
    """Of the function that is called."""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All so far; a call's arguments."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to a block: it was opened, has grown by a text, or was closed."""

    kind: Literal["opened", "grown", "closed"]
    block: Block
    text: str = ""


class BlockReader:
    """Pushes an output through its parser and tells how the blocks change. Only the last block is ever open.

    Pushed as a whole or in any pieces, an output ends as the same blocks.
    """

    def __init__(self, parser: OutputParser) -> None:
        self.blocks: list[Block] = []
        self._parser = parser
        self._is_open = False

    @property
    def has_calls(self) -> bool:
        """Whether a tool is called."""
        return any(block.kind == "call" for block in self.blocks)

    def push(self, text: str) -> Iterator[Change]:
        """Yield the changes that more of the output makes."""
        yield from self._read(self._parser.push(text))

    def finish(self) -> Iterator[Change]:
        """Yield the last changes, after which no block is open."""
        yield from self._read(self._parser.finish())
        yield from self.close()

    def open(self, kind: BlockKind, call_id: str = "", name: str = "") -> Iterator[Change]:
        """Yield the changes that begin a block: the end of the one before, and its own."""
        yield from self.close()
        self.blocks.append(Block(len(self.blocks), kind, call_id, name))
        self._is_open = True
        yield Change("opened", self.blocks[-1])

    def close(self) -> Iterator[Change]:
        """Yield the end of the open block, if there is one."""
        if self._is_open:
            self._is_open = False
            yield Change("closed", self.blocks[-1])

    def _read(self, parts: Iterable[Part]) -> Iterator[Change]:
        for part in parts:
            if isinstance(part, CallPart):
                yield from self.open("call", part.call_id, part.name)
                continue
            if not part.text:
                continue
            kind: BlockKind = (
                "text" if isinstance(part, TextPart) else "reasoning" if isinstance(part, ReasoningPart) else "call"
            )
            if kind != "call" and not (self._is_open and self.blocks[-1].kind == kind):
                yield from self.open(kind)
            block = self.blocks[-1]
            block.pieces.append(part.text)
            yield Change("grown", block, part.text)
