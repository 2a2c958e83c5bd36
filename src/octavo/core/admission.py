"""Who may start: what can never be served, and when a waiting request may take blocks from the free ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from octavo.errors import RequestError
from octavo.wording import counted

if TYPE_CHECKING:
    from octavo.config import SchedulerConfig
    from octavo.core.kv_cache_manager import KVCacheManager
    from octavo.core.prefix_index import PrefixNode
    from octavo.core.request import Request


class AdmissionPolicy:
    """Decides on numbers alone; owns nothing."""

    def __init__(self, config: SchedulerConfig, manager: KVCacheManager) -> None:
        self._config = config
        self._manager = manager
        self.max_request_tokens = self._find_max_request_tokens()
        """Prompt plus output, in tokens, of the longest request that the empty cache can hold."""

    def check_fits(self, prompt_len: int, max_tokens: int | None) -> int:
        """Return the `max_tokens` a request of this prompt gets: none given means as many as fit; 0, that it is pooled.

        Raises: `RequestError` if the request could not be served even alone.
        """
        limit = self._config.max_model_len
        if prompt_len < 1:
            raise RequestError("the prompt has no tokens; give at least 1", parameter="prompt", value=prompt_len)
        least = 0 if max_tokens == 0 else 1
        if prompt_len > limit - least:
            with_output = ", and with 1 output token it" if least else ", and"
            raise RequestError(
                f"the prompt has {prompt_len} tokens{with_output} exceeds max_model_len = {limit}; "
                f"shorten it to at most {limit - least} tokens",
                parameter="prompt",
                value=prompt_len,
            )
        most = min(limit, self.max_request_tokens) - prompt_len
        wanted = limit - prompt_len if max_tokens is None else min(max_tokens, limit - prompt_len)
        if most >= 1 and max_tokens is None:
            return most
        if wanted > most:
            raise self._never_fits(prompt_len, max_tokens if max_tokens and most >= 1 else least, most)
        return wanted

    def has_room(
        self, request: Request, nodes: Sequence[PrefixNode], chunk: int, num_running: int, prefilling: Iterable[Request]
    ) -> bool:
        """Whether a waiting request may start beside those that run.

        It must find blocks for all tokens it has, beyond what the running ones lack for theirs and one each; else they
        would soon take turns in preempting each other.

        Args:
            nodes: its cached prefix.
            prefilling: the running requests that lack more than a block.
        """
        counts = self._manager.blocks_to_admit(request, nodes, chunk)
        counts = list(map(int.__add__, counts, self._manager.blocks_to_go_on(num_running)))
        for other in prefilling:
            for group, lacking in enumerate(self._manager.blocks_to_finish(other, chunk)):
                counts[group] += lacking - 1
        return self._manager.pool.can_allocate(counts)

    def _blocks_needed(self, num_tokens: int) -> list[int]:
        """Return per group the blocks without which a request of `num_tokens` cannot reach its end.

        Chunks shrink to the free blocks, down to one token, unless a prompt has to run in one step.
        """
        return self._manager.most_blocks(num_tokens, 1 if self._config.enable_chunked_prefill else num_tokens)

    def _find_max_request_tokens(self) -> int:
        """Return the largest fitting length; needs grow with length."""

        def is_too_long(num_tokens: int) -> bool:
            return not self._manager.could_ever_fit(self._blocks_needed(num_tokens))

        return bisect_left(range(1, self._config.max_model_len + 1), True, key=is_too_long)

    def _never_fits(self, prompt_len: int, max_tokens: int, most: int) -> RequestError:
        """Return the refusal, with the numbers."""
        total, limit = prompt_len + max_tokens, self._config.max_model_len
        counting = f" = {total} tokens" if total <= limit else f" tokens, {limit} of which max_model_len lets count,"
        needed = self._blocks_needed(min(total, limit))
        pool = self._manager.pool
        way_out = f"lower max_tokens to at most {most}" if most >= 1 else "shorten the prompt"
        return RequestError(
            f"prompt and output together are {prompt_len} + {max_tokens}{counting} and need "
            f"{self._manager.num_bytes(needed)} bytes of KV cache ({self._listed(needed)}); the cache has "
            f"{pool.ledger_bytes} bytes ({self._listed(pool.num_blocks)}), enough for {self.max_request_tokens} "
            f"tokens; {way_out} or raise kv_cache_memory_bytes",
            parameter="max_tokens" if most >= 1 else "prompt",
            value=max_tokens if most >= 1 else prompt_len,
        )

    def _listed(self, counts: Iterable[int]) -> str:
        """Return counts per group as "3 blocks + 1 state slot"."""
        return " + ".join(counted(n, group.unit) for n, group in zip(counts, self._manager.groups, strict=True))
