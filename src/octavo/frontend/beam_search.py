"""Beam search on top of generation: every step asks for the most probable next tokens of all beams at once.

A beam's tokens are a prompt, so all but the last block of it comes from the prefix cache.

Source: vLLM's `LLM.beam_search`, whose candidates, scores and order these are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias

from octavo.errors import RequestError
from octavo.frontend.call_arguments import refuse
from octavo.frontend.progress import make_bar
from octavo.outputs import BeamSearchOutput, BeamSearchSequence, Logprob, RequestOutput
from octavo.sampling_params import BeamSearchParams, SamplingParams
from octavo.wording import counted

if TYPE_CHECKING:
    from octavo.frontend.input_processor import EngineInput
    from octavo.frontend.llm_engine import LLMEngine
    from octavo.tokenizer.tokenizer import Tokenizer

Generate: TypeAlias = Callable[[list[dict[str, Any]]], list[RequestOutput]]
"""Runs prompts with the parameters that `step_params` returns."""


def step_params(params: BeamSearchParams, max_logprobs: int) -> SamplingParams:
    """Return the parameters of one step: two candidates for each beam, since half of them may end.

    Raises: `RequestError` if these are more than `max_logprobs`, of which -1 is no limit.
    """
    num_candidates = 2 * params.beam_width
    if 0 <= max_logprobs < num_candidates:
        raise RequestError(
            f"beam_width ({params.beam_width}) needs the {num_candidates} most probable tokens of each position, which"
            f" is more than {max_logprobs}; use at most {max_logprobs // 2} or raise the engine option max_logprobs.",
            parameter="beam_width",
            value=params.beam_width,
        )
    return SamplingParams(temperature=0, max_tokens=1, logprobs=num_candidates, detokenize=False)


def check_room(inputs: Sequence[EngineInput], params: BeamSearchParams, engine: LLMEngine) -> None:
    """Raise `RequestError` if a prompt leaves less room than a beam may take, of the context or of the cache."""
    for source in inputs:
        prompt_len = len(source.prompt_token_ids)
        room = engine.max_model_len - prompt_len
        if params.max_tokens > room:
            raise RequestError(
                f"max_tokens ({params.max_tokens}) is more than the {counted(room, 'token')} that a prompt of"
                f" {counted(prompt_len, 'token')} leaves of the maximum context length, {engine.max_model_len}.",
                parameter="max_tokens",
                value=params.max_tokens,
            )
        engine.check_fits(prompt_len, params.max_tokens)


@dataclass(frozen=True, slots=True)
class _Beam:
    """Tokens, prompt included, and what is to be known of them."""

    token_ids: list[int]
    logprobs: list[dict[int, Logprob]]
    cum_logprob: float = 0.0
    is_ended: bool = False
    """Whether the last token is one that ends a text."""

    def rank(self, length_penalty: float) -> tuple[float, float]:
        """Return by what beams are ordered: a mean logprob, if the penalty is 1. An end token is not counted.

        It is minus the logarithm of minus the score, since no float holds the powers of a long beam's length.
        """
        length = len(self.token_ids) - self.is_ended
        if self.cum_logprob >= 0:
            return math.inf, self.cum_logprob
        return length_penalty * math.log(length) - math.log(-self.cum_logprob), self.cum_logprob


@dataclass(slots=True)
class _Search:
    """The beams of one prompt."""

    index: int
    cache_salt: str | None
    running: list[_Beam]
    ended: list[_Beam] = field(default_factory=list)


class BeamSearch:
    """Searches for the most probable continuations of prompts."""

    def __init__(self, params: BeamSearchParams, tokenizer: Tokenizer, generate: Generate) -> None:
        self._params = params
        self._tokenizer = tokenizer
        self._generate = generate
        self._end_ids = frozenset() if params.ignore_eos else frozenset(tokenizer.eos_token_ids)

    def run(
        self,
        inputs: Sequence[EngineInput],
        concurrency_limit: int | None = None,
        use_tqdm: bool | Callable[..., Any] = False,
    ) -> list[BeamSearchOutput]:
        """Return the best beams of each prompt, best first; so many prompts at once.

        Raises: `RequestError` naming the prompt of which a beam cannot go on.
        """
        if concurrency_limit is not None:
            if isinstance(concurrency_limit, bool) or not isinstance(concurrency_limit, Integral):
                refuse("concurrency_limit", concurrency_limit, "must be an integer, or None for no limit")
            if concurrency_limit < 1:
                refuse("concurrency_limit", concurrency_limit, "must be at least 1, or None for no limit")
        size = concurrency_limit or max(1, len(inputs))
        bar = make_bar(use_tqdm, total=len(inputs), desc="Searched prompts")
        outputs: list[BeamSearchOutput] = []
        for first in range(0, len(inputs), size):
            some = inputs[first : first + size]
            searches = [
                _Search(index, source.cache_salt, [_Beam(list(source.prompt_token_ids), [])])
                for index, source in enumerate(some, first)
            ]
            for _ in range(self._params.max_tokens):
                if not self._step(searches):
                    break
            outputs += map(self._output, searches)
            if bar is not None:
                bar.update(len(some))
        if bar is not None:
            bar.close()
        return outputs

    def _step(self, searches: Sequence[_Search]) -> bool:
        """Let all beams grow by one token; return whether there were any."""
        prompts: list[dict[str, Any]] = [
            {"prompt_token_ids": beam.token_ids, "cache_salt": search.cache_salt}
            for search in searches
            for beam in search.running
        ]
        if not prompts:
            return False
        outputs = iter(self._generate(prompts))
        for search in searches:
            grown: list[_Beam] = []
            for beam in search.running:
                output = next(outputs)
                if output.error is not None:
                    raise RequestError(f"a beam of prompt {search.index} cannot go on: {output.error.message}")
                (candidates,) = output.outputs[0].logprobs or [{}]
                grown += [self._grown(beam, token, candidates) for token in candidates]
            search.ended += [beam for beam in grown if beam.is_ended]
            search.running = self._best([beam for beam in grown if not beam.is_ended])
        return True

    def _grown(self, beam: _Beam, token: int, candidates: dict[int, Logprob]) -> _Beam:
        total = beam.cum_logprob + candidates[token].logprob
        return _Beam([*beam.token_ids, token], [*beam.logprobs, candidates], total, token in self._end_ids)

    def _best(self, beams: list[_Beam]) -> list[_Beam]:
        penalty = self._params.length_penalty
        return sorted(beams, key=lambda beam: beam.rank(penalty), reverse=True)[: self._params.beam_width]

    def _output(self, search: _Search) -> BeamSearchOutput:
        return BeamSearchOutput([self._sequence(beam) for beam in self._best(search.ended + search.running)])

    def _sequence(self, beam: _Beam) -> BeamSearchSequence:
        keeps_end = self._params.include_stop_str_in_output or not beam.is_ended
        ids = beam.token_ids if keeps_end else beam.token_ids[:-1]
        text = self._tokenizer.decode(ids, skip_special_tokens=self._params.skip_special_tokens)
        reason = "stop" if beam.is_ended else "length"
        return BeamSearchSequence(beam.token_ids, beam.logprobs, beam.cum_logprob, text, reason)
