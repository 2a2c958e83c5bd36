"""A loaded engine under observation: runs work and returns what happened."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from octavo.bench.figures import Job, RequestRecord
from octavo.bench.recorder import StepRecorder
from octavo.bench.step_work import WorkModel
from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.frontend.build import build
from octavo.llm import LLM
from octavo.native.peaks import PeakMeter, ThreadPeaks
from octavo.sampling_params import SamplingParams

if TYPE_CHECKING:
    from octavo.bench.workload import WorkItem
    from octavo.outputs import RequestOutput


class BenchSession:
    """One engine, its recorder, and the peaks of the machine. A context manager.

    Prefix caching is off unless the options say otherwise: prompts that begin alike would not be computed.
    """

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        self.config = EngineConfig(model, **{"enable_prefix_caching": False, **options})
        self._recorder = StepRecorder()
        self.built = build(self.config, events=self._recorder)
        self.llm = LLM.from_engine(self.built.engine)
        self.work_model = WorkModel(self.built.program, self.built.weight_bytes, self.built.int8_weights)
        self._meter = PeakMeter(self.built.num_threads)

    def __enter__(self) -> BenchSession:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.llm.close()

    @property
    def max_model_len(self) -> int:
        """The engine's limit of prompt plus output."""
        return self.built.engine.max_model_len

    def measure_peaks(self) -> ThreadPeaks:
        """Measure what the threads of the engine can do right now. The engine is idle; it takes memory."""
        return self._meter.measure()

    def run(self, items: Sequence[WorkItem], *, temperature: float = 0.0, show_progress: bool = False) -> Job:
        """Serve all items, which arrive at once.

        Raises: `RequestError` if one of them cannot be served; `ConfigError` if one would end before all its tokens.
        """
        self.check_room(items)
        prompts = [
            {"prompt": item.prompt} if isinstance(item.prompt, str) else {"prompt_token_ids": item.prompt}
            for item in items
        ]
        params = [
            SamplingParams(temperature=temperature, max_tokens=item.output_len, ignore_eos=True) for item in items
        ]
        self._recorder.take()
        started = time.perf_counter()
        outputs = self.llm.generate(prompts, params, use_tqdm=show_progress)
        seconds = time.perf_counter() - started
        return Job(self._recorder.take(), [_request_record(output) for output in outputs], seconds)

    def check_room(self, items: Sequence[WorkItem]) -> None:
        """Raise `ConfigError` if there is no room for all that an item asks for; texts are tokenised later."""
        for item in items:
            if isinstance(item.prompt, str) or len(item.prompt) + item.output_len <= self.max_model_len:
                continue
            total = f"{len(item.prompt)} + {item.output_len} = {len(item.prompt) + item.output_len}"
            raise ConfigError(
                f"input_len and output_len of a request are {total} tokens, and max_model_len is "
                f"{self.max_model_len}: lower them, or {self.built.engine.way_to_more_length}."
            )

    def warm_up(self, item: WorkItem) -> None:
        """Run the beginning of an item, so that nothing is measured that happens once. Lengths are cut to fit."""
        self.run([type(item)(item.prompt[: max(1, self.max_model_len - 2)], min(2, self.max_model_len - 1))])


def _request_record(output: RequestOutput) -> RequestRecord:
    stats = output.metrics
    assert stats is not None, "the engine stamps every request"
    return RequestRecord(
        num_prompt_tokens=len(output.prompt_token_ids or ()),
        num_output_tokens=sum(len(completion.token_ids) for completion in output.outputs),
        num_cached_tokens=output.num_cached_tokens or 0,
        num_preemptions=stats.num_preemptions,
        queued_at=stats.queued_ts,
        first_token_at=stats.first_token_ts,
        last_token_at=stats.last_token_ts,
    )
