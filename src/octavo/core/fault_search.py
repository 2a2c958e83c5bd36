"""Finding the request that makes steps fail, by running halves of a failed step's members on their own.

Recomputing gives the same bits, so a request that broke a step breaks it again. While a search goes on, only one group
of suspects is admitted at a time. A suspect is cleared once it got past the tokens at which the step failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from octavo.core.request import RequestStatus

if TYPE_CHECKING:
    from octavo.core.request import Request

Suspect = tuple["Request", int]
"""A request, and how many tokens it must have computed to be cleared."""


class FaultSearch:
    """A stack of groups of suspects; the last is being tried."""

    def __init__(self) -> None:
        self._groups: list[dict[Request, int]] = []

    @property
    def is_active(self) -> bool:
        """Whether anyone is suspected."""
        return bool(self._groups)

    def accuse(self, members: Sequence[Suspect]) -> Request | None:
        """Take note that a step of these members failed; return the guilty one if there was no other.

        Mutates: self.
        """
        tried = self._groups.pop() if self._groups else {}
        failed = {request: max(target, tried.get(request, 0)) for request, target in members}
        untried = {request: target for request, target in tried.items() if request not in failed}
        if untried:
            self._groups.append(untried)
        if len(failed) == 1:
            return members[0][0]
        suspects = list(failed.items())
        middle = len(suspects) // 2
        self._groups += [dict(suspects[middle:]), dict(suspects[:middle])]
        return None

    def clear_passed(self) -> bool:
        """Drop suspects that ended or got past their target; return whether another group's turn has come.

        Mutates: self.
        """
        changed = False
        while self._groups:
            group = self._groups[-1]
            for request, target in list(group.items()):
                if request.status is RequestStatus.FINISHED or request.num_computed_tokens >= target:
                    del group[request]
            if group:
                break
            self._groups.pop()
            changed = True
        return changed and self.is_active

    def next_waiting(self) -> Request | None:
        """Return the first suspect of the current group that waits."""
        waiting = [request for request in self._groups[-1] if request.status is RequestStatus.WAITING]
        return min(waiting, key=lambda request: request.rank, default=None)
