"""Blocks of an output as items of a response, and their changes as its events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from octavo.server.responses_api import objects
from octavo.server.responses_api.objects import CallItem, MessageItem, OutputText, ReasoningItem, ReasoningText

if TYPE_CHECKING:
    from octavo.server.protocol.blocks import Block, Change
    from octavo.server.protocol.responses import TokenLogprob
    from octavo.server.responses_api.objects import Event, OutputItem, Status


class ItemWriter:
    """Keeps the items of one response.

    Args:
        response_id: without a prefix; the items' ids come from it.
    """

    def __init__(self, response_id: str) -> None:
        self.items: list[OutputItem] = []
        """Those that have ended."""
        self._id = response_id

    def events(
        self, change: Change, status: Status, new_logprobs: list[TokenLogprob], all_logprobs: list[TokenLogprob]
    ) -> Iterator[Event]:
        """Yield the events of a change.

        Args:
            status: of the item, where the change ends it.
            new_logprobs: that no event has told yet; taken out by one that tells them.
            all_logprobs: of a text that ends.
        """
        block = change.block
        if change.kind == "opened":
            yield objects.ItemAdded(output_index=block.index, item=self._item(block, "in_progress", None))
            if block.kind != "call":
                yield objects.PartAdded(part=_empty_part(block), **self._place(block))
        elif change.kind == "grown":
            yield self._delta(block, change.text, new_logprobs)
        else:
            yield from self._end(block, status, all_logprobs)

    def _delta(self, block: Block, text: str, new_logprobs: list[TokenLogprob]) -> Event:
        place = self._place(block)
        if block.kind == "text":
            told = list(new_logprobs)
            new_logprobs.clear()
            return objects.TextDelta(delta=text, logprobs=told, **place)
        if block.kind == "reasoning":
            return objects.ReasoningDelta(delta=text, **place)
        return objects.ArgumentsDelta(delta=text, **place)

    def _end(self, block: Block, status: Status, logprobs: list[TokenLogprob]) -> Iterator[Event]:
        place, text = self._place(block), block.text
        if block.kind == "call":
            item = self._item(block, status, None)
            yield objects.ArgumentsDone(name=block.name, arguments=text, **place)
        else:
            part: OutputText | ReasoningText
            if block.kind == "text":
                part = OutputText(text=text, logprobs=list(logprobs))
                yield objects.TextDone(text=text, logprobs=part.logprobs, **place)
            else:
                part = ReasoningText(text=text)
                yield objects.ReasoningDone(text=text, **place)
            yield objects.PartDone(part=part, **place)
            item = self._item(block, status, part)
        self.items.append(item)
        yield objects.ItemDone(output_index=block.index, item=item)

    def _place(self, block: Block) -> dict[str, Any]:
        return {"item_id": self._item_id(block), "output_index": block.index}

    def _item_id(self, block: Block) -> str:
        return f"{_PREFIXES[block.kind]}_{self._id}_{block.index}"

    def _item(self, block: Block, status: Status, part: OutputText | ReasoningText | None) -> OutputItem:
        """Return an item as it is when it begins, or, with its part, when it has ended."""
        item_id = self._item_id(block)
        if block.kind == "call":
            return CallItem(id=item_id, status=status, call_id=block.call_id, name=block.name, arguments=block.text)
        if block.kind == "reasoning":
            thoughts = [part] if isinstance(part, ReasoningText) else []
            return ReasoningItem(id=item_id, status=status, content=thoughts)
        texts = [part] if isinstance(part, OutputText) else []
        return MessageItem(id=item_id, status=status, content=texts)


def _empty_part(block: Block) -> OutputText | ReasoningText:
    return OutputText() if block.kind == "text" else ReasoningText()


_PREFIXES = {"text": "msg", "reasoning": "rs", "call": "fc"}
