"""What engines did before continuous batching and paging, as policies of this one: for comparison, not for use.

Each replaces one object of the control plane. Everything else, and every bit of the answers, is the engine's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from octavo.core.admission import AdmissionPolicy
from octavo.core.cache_groups import ceil_div
from octavo.core.kv_cache_manager import KVCacheManager

if TYPE_CHECKING:
    from octavo.core.prefix_index import PrefixNode
    from octavo.core.request import Request


class StaticBatching(AdmissionPolicy):
    """Request-level scheduling: a batch starts together, and nobody joins until its last member has ended.

    A batch is what is admitted in one step; when nobody runs, the scheduler asks no policy and begins the next.
    """

    def has_room(
        self, request: Request, nodes: Sequence[PrefixNode], chunk: int, num_running: int, prefilling: Iterable[Request]
    ) -> bool:
        """Whether a waiting request may join: not once a member of the batch has computed anything."""
        members = list(prefilling)
        is_open = len(members) == num_running and all(other.num_computed_tokens == 0 for other in members)
        return is_open and super().has_room(request, nodes, chunk, num_running, members)


class ContiguousReservation(KVCacheManager):
    """Memory for a request's keys and values is set aside when it starts, in one piece, for as long as it may get.

    A subclass says how long that is. What was set aside is never used for anybody else before the request ends.
    """

    def reserved_tokens(self, request: Request) -> int:
        """Return for how many tokens memory is set aside."""
        raise NotImplementedError

    def adopt(self, request: Request, nodes: Sequence[PrefixNode]) -> None:
        """See `KVCacheManager`. Takes all blocks at once. Mutates: request, the pool."""
        super().adopt(request, nodes)
        self.allocate(request, self.reserved_tokens(request) - request.num_computed_tokens)

    def blocks_to_admit(self, request: Request, nodes: Sequence[PrefixNode], chunk: int) -> list[int]:
        """See `KVCacheManager`."""
        counts = super().blocks_to_admit(request, nodes, chunk)
        more = ceil_div(self.reserved_tokens(request), self.block_size) - ceil_div(request.num_tokens, self.block_size)
        return [count + more for count in counts[: len(self._paged)]] + counts[len(self._paged) :]

    def blocks_to_go_on(self, num_running: int) -> list[int]:
        """See `KVCacheManager`. Those that run have all blocks that they will need."""
        return [0] * len(self._paged) + super().blocks_to_go_on(num_running)[len(self._paged) :]


def reservation(tokens: Callable[[Request, int], int], max_model_len: int) -> type[ContiguousReservation]:
    """Return a manager that sets aside `tokens(request, max_model_len)` for each request, at most `max_model_len`."""

    class Reservation(ContiguousReservation):
        """See `ContiguousReservation`."""

        def reserved_tokens(self, request: Request) -> int:
            return min(max_model_len, tokens(request, max_model_len))

    return Reservation


def longest_allowed(request: Any, max_model_len: int) -> int:
    """Return the length that any request may get: nothing is known of this one."""
    del request
    return max_model_len


def next_power_of_two(request: Request, max_model_len: int) -> int:
    """Return prompt and output, the output rounded up to a power of two: its length is known by half."""
    del max_model_len
    return request.prompt_len + (1 << (request.max_tokens - 1).bit_length())


def exact_length(request: Request, max_model_len: int) -> int:
    """Return the length that the request will have: an oracle told it."""
    del max_model_len
    return request.prompt_len + request.max_tokens
