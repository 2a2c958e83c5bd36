"""Several calls that wait for one engine, each on its thread: one of them steps, and delivers to the others."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from octavo.errors import RequestError

if TYPE_CHECKING:
    from octavo.frontend.llm_engine import LLMEngine
    from octavo.outputs import RequestOutput

Mailbox = deque["RequestOutput"]


class Mailboxes:
    """Where the outputs of requests go: each call has one box for all of its own."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._box_of: dict[str, Mailbox] = {}
        self._stepping = threading.Lock()

    def open(self, request_ids: Iterable[str]) -> Mailbox:
        """Return a box for the outputs of these requests, which are about to be added."""
        box: Mailbox = deque()
        self._box_of.update(dict.fromkeys(request_ids, box))
        return box

    def close(self, request_ids: Iterable[str]) -> None:
        """Drop what still comes of these requests."""
        for request_id in request_ids:
            self._box_of.pop(request_id, None)

    def wait(self, box: Mailbox, request_ids: Iterable[str]) -> None:
        """Step until there is something in `box`, of these requests.

        Raises: `RequestError` if nothing will ever come.
        """
        while not box:
            with self._stepping:
                # Another call may have delivered while this one waited for its turn.
                for output in self._engine.step() if not box else ():
                    owner = self._box_of.get(output.request_id)
                    if owner is not None:
                        owner.append(output)
                if not (box or self._engine.knows_any(request_ids)):
                    raise RequestError("the requests of this call were ended by another call, and have no output.")
