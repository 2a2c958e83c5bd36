"""`octavo run-batch`: OpenAI's batch format on the offline engine. An answer depends on its line alone.

Seeds come from the custom_id, ids too, and `created` from the input file: a run that was killed and repeated leaves the
same lines as one that was not.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.errors import OctavoError, RequestError
from octavo.pooling_params import PoolingParams
from octavo.server.batch_files import BatchError, BatchLine, BatchOutput, NumberedLine, make_line, read_lines
from octavo.server.parsers.formats import model_format
from octavo.server.protocol.calls import Call, ProtocolContext, parse_chat, parse_completion
from octavo.server.protocol.embeddings import EmbeddingCall, parse_embedding
from octavo.server.protocol.errors import ApiError, api_error, output_error
from octavo.server.protocol.limits import RequestLimits
from octavo.server.protocol.prompts import rendering_arguments
from octavo.server.protocol.renaming import in_other_words
from octavo.server.responses_api.calls import NAMES, parse_response
from octavo.tokenizer.chat_template import render_chat

if TYPE_CHECKING:
    from octavo.frontend.input_processor import EngineInput, Prompt
    from octavo.frontend.llm_engine import LLMEngine
    from octavo.outputs import RequestOutput
    from octavo.sampling_params import SamplingParams

_WINDOW = 1_024
"""Lines that the engine has at once: more than it can run, so that it never waits for the file."""
_EMBEDDINGS = "/v1/embeddings"
_PARSERS: dict[str, tuple[Callable[[bytes, ProtocolContext], Call], Mapping[str, str]]] = {
    "/v1/completions": (parse_completion, {}),
    "/v1/chat/completions": (parse_chat, {}),
    "/v1/responses": (parse_response, NAMES),
}
"""What reads the body of a line, and in which words its errors are told."""


@dataclass(slots=True)
class BatchCounts:
    """How a batch stands: what earlier runs did is part of it."""

    num_lines: int = 0
    num_done_before: int = 0
    num_errors: int = 0

    @property
    def num_answered(self) -> int:
        """Lines that were served."""
        return self.num_lines - self.num_errors


@dataclass(slots=True)
class _Job:
    """A line that the engine works on."""

    line: NumberedLine
    call: Call | EmbeddingCall
    prompts: Sequence[Prompt]
    names: Mapping[str, str] = field(default_factory=dict)
    """See `_PARSERS`."""
    outputs: dict[int, RequestOutput] = field(default_factory=dict)
    """Of prompts that are done, by index."""


class BatchRunner:
    """Runs the lines of one batch that are not done yet.

    Args:
        model_names: what the lines may call the model.
        seed: of the engine.
        created: what answers say about when they were made.
    """

    def __init__(
        self, engine: LLMEngine, output: BatchOutput, *, model_names: tuple[str, ...], seed: int, created: int
    ) -> None:
        self._engine = engine
        self._output = output
        self._seed = seed
        self._created = created
        self._context = ProtocolContext(
            model_names=model_names,
            default_sampling_params=engine.default_sampling_params,
            limits=RequestLimits(),
            texts=engine.tokenizer,
            output_format=model_format(engine.tokenizer),
            fingerprint=engine.numeric_fingerprint,
            tells_cached_tokens=False,  # what was cached depends on what ran before
        )
        self._jobs: dict[str, _Job] = {}
        """By the id of each prompt's request."""

    def run(self, lines: Iterable[NumberedLine]) -> Iterator[BatchLine]:
        """Serve lines; yield each answer when it is written."""
        remaining = iter(lines)
        while True:
            yield from self._start(list(itertools.islice(remaining, max(0, _WINDOW - len(self._jobs)))))
            if not self._jobs:
                return
            for output in self._engine.step():
                if output.finished:
                    yield from self._collect(output)

    def _start(self, lines: Sequence[NumberedLine]) -> Iterator[BatchLine]:
        """Give lines to the engine; those that cannot be served are answered at once."""
        by_tokenization: dict[bool, list[_Job]] = {}
        for line in lines:
            try:
                job = self._parse(line)
            except (OctavoError, ApiError) as error:
                yield self._write_error(line, api_error(error))
            else:
                by_tokenization.setdefault(job.call.add_special_tokens, []).append(job)
        for adds_special, jobs in by_tokenization.items():
            yield from self._add(jobs, adds_special)

    def _parse(self, line: NumberedLine) -> _Job:
        if line.request is None:
            raise ApiError(400, line.fault or "the line is not a request")
        if line.request.method != "POST":
            raise ApiError(400, "method must be POST.", "method")
        if line.request.url == _EMBEDDINGS:
            embedding = parse_embedding(bytes(line.request.body), self._context)
            return _Job(line, embedding, embedding.prompts)
        if line.request.url not in _PARSERS:
            raise ApiError(400, f"url must be one of {', '.join((*_PARSERS, _EMBEDDINGS))}.", "url")
        parse, names = _PARSERS[line.request.url]
        with in_other_words(names):
            call = parse(bytes(line.request.body), self._context)
            if call.stream:
                raise RequestError("stream must be false in a batch.", parameter="stream")
            if call.conversation is not None:
                call = call.with_rendered(render_chat(**rendering_arguments(self._engine.tokenizer, call.conversation)))
        return _Job(line, call, call.prompts, names)

    def _add(self, jobs: Sequence[_Job], adds_special: bool) -> Iterator[BatchLine]:
        prompts: list[Prompt | RequestError] = [prompt for job in jobs for prompt in job.prompts]
        params = [self._seeded(job, index) for job in jobs for index in range(len(job.prompts))]
        prepared = iter(self._engine.prepare(prompts, params, add_special_tokens=adds_special))
        inputs: list[tuple[str, EngineInput, int]] = []
        refused: list[tuple[_Job, RequestError]] = []
        for job in jobs:
            entries = list(itertools.islice(prepared, len(job.prompts)))
            try:
                with in_other_words(job.names):
                    own = job.call.checked_inputs(entries, self._engine.max_model_len)
            except RequestError as error:
                refused.append((job, error))
                continue
            for index, entry in enumerate(own):
                request_id = f"{job.line.number}-{index}"
                self._jobs[request_id] = job
                inputs.append((request_id, entry, job.call.priority))
        self._engine.add_inputs(inputs)
        for job, reason in refused:
            yield self._write_error(job.line, api_error(reason))

    def _seeded(self, job: _Job, prompt_index: int) -> SamplingParams | PoolingParams:
        """Return the parameters of one prompt with a seed that is the same whenever its line is run."""
        params = job.call.params
        if isinstance(params, PoolingParams):
            return params
        if params.seed is None:
            params = params.clone()
            params.seed = _hashed(f"{self._seed}:{prompt_index}:{job.line.custom_id}")
        return params

    def _collect(self, output: RequestOutput) -> Iterator[BatchLine]:
        job = self._jobs.pop(output.request_id)
        job.outputs[int(output.request_id.rpartition("-")[2])] = output
        if len(job.outputs) < len(job.prompts):
            return
        outputs = [job.outputs[index] for index in range(len(job.prompts))]
        failure = next((entry.error for entry in outputs if entry.error is not None), None)
        if failure is not None:
            yield self._write_error(job.line, output_error(failure))
        else:
            body = job.call.answer(job.line.id, self._created).body(outputs)
            yield self._write(make_line(job.line, 200, body))

    def _write_error(self, line: NumberedLine, error: ApiError) -> BatchLine:
        return self._write(make_line(line, error.status, error.body(), BatchError(error.kind, error.text)))

    def _write(self, line: BatchLine) -> BatchLine:
        self._output.append(line)
        return line


def run_batch(
    make_engine: Callable[[], LLMEngine],
    input_path: Path,
    output_path: Path,
    *,
    model_names: tuple[str, ...],
    seed: int,
    shows_progress: bool,
) -> BatchCounts:
    """Answer all lines of a file that the output has no answer to yet.

    Args:
        make_engine: called only if there is something to do; the engine is closed in the end.

    Raises: `ConfigError` for an output that is in use or something else; OSError.
    """
    from tqdm import tqdm

    with BatchOutput(output_path) as output:
        errors = [output.done.get(line.id) for line in read_lines(input_path)]
        counts = BatchCounts(len(errors), len(errors) - errors.count(None), errors.count(True))
        if counts.num_done_before == counts.num_lines:
            return counts
        created = int(input_path.stat().st_mtime)
        todo = (line for line in read_lines(input_path) if line.id not in output.done)
        bar = tqdm(
            total=counts.num_lines,
            initial=counts.num_done_before,
            desc="Running batch",
            unit="line",
            disable=not shows_progress,
        )
        engine = make_engine()
        try:
            runner = BatchRunner(engine, output, model_names=model_names, seed=seed, created=created)
            for line in runner.run(todo):
                counts.num_errors += line.error is not None
                bar.update()
        finally:
            engine.close()
            bar.close()
    return counts


def _hashed(text: str) -> int:
    """Return a 62-bit number."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2
