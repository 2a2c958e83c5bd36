"""Progress bars: of `LLM.generate` with requests done and tokens per second, and of weights being quantised."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.outputs import RequestOutput

_PATIENCE_S = 0.5
"""What takes less needs no bar."""


class ProgressBar:
    """Counts finished requests on a bar, or silently.

    Args:
        use_tqdm: whether to show one; or a callable that makes it as `tqdm` does.
    """

    def __init__(self, use_tqdm: bool | Callable[..., Any], total: int) -> None:
        self._num_input_tokens = 0
        self._num_output_tokens = 0
        self._started = time.monotonic()
        self._bar = make_bar(
            use_tqdm, total=total, desc="Processed prompts", dynamic_ncols=True, postfix=self._speeds(), unit="req"
        )

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, output: RequestOutput) -> None:
        """Count one finished request."""
        self._num_input_tokens += len(output.prompt_token_ids or ())
        self._num_output_tokens += sum(len(completion.token_ids) for completion in output.outputs)
        if self._bar is not None:
            self._bar.postfix = self._speeds()
            self._bar.update(1)

    def _speeds(self) -> str:
        seconds = max(time.monotonic() - self._started, 1e-9)
        per_second = f"{self._num_input_tokens / seconds:.2f} toks/s, output: {self._num_output_tokens / seconds:.2f}"
        return f"est. speed input: {per_second} toks/s"


def make_bar(use_tqdm: bool | Callable[..., Any], **options: Any) -> Any:
    """Return a bar, or None if none is wanted. A callable makes it as `tqdm` does."""
    if not use_tqdm:
        return None
    return (_tqdm() if use_tqdm is True else use_tqdm)(**options)


@contextmanager
def quantizing_bar(is_shown: bool, num_bytes: int) -> Iterator[Callable[[int], object]]:
    """Count bytes of the model's file on a bar, if stderr is a terminal and it takes a while; yield what counts."""
    bar = _tqdm()(
        total=num_bytes,
        desc="Quantizing weights",
        unit="B",
        unit_scale=True,
        leave=False,
        delay=_PATIENCE_S,
        disable=None if is_shown else True,
    )
    with bar:
        yield bar.update


def _tqdm() -> Callable[..., Any]:
    from tqdm import tqdm

    return tqdm
