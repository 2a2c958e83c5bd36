"""What a command says on stderr when its answers are there: tokens, speed, memory, and why an answer was cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from octavo.cli.engine_flags import named_by_flags
from octavo.wording import counted

if TYPE_CHECKING:
    from octavo.llm import LLM
    from octavo.outputs import CompletionOutput, RequestOutput
    from octavo.sampling_params import SamplingParams


def summary(llm: LLM, outputs: Sequence[RequestOutput], params: SamplingParams) -> str:
    """Lines: those of `answer_lines`, and how the KV cache was used."""
    return "\n".join([*answer_lines(llm, outputs, params), llm.kv_cache_stats().summary()])


def answer_lines(llm: LLM, outputs: Sequence[RequestOutput], params: SamplingParams) -> list[str]:
    """Return why answers were cut, and their tokens with the speed from arrival to the last."""
    stats = [output.metrics for output in outputs if output.metrics is not None]
    num_prompt = sum(len(output.prompt_token_ids or ()) for output in outputs)
    num_generated = sum(entry.num_generation_tokens for entry in stats)
    begin = min((entry.queued_ts for entry in stats), default=0.0)
    first = min((entry.first_token_ts for entry in stats), default=0.0)
    last = max((entry.last_token_ts for entry in stats), default=0.0)
    seconds = max(last - begin, 1e-9)
    speed = f"{num_generated / seconds:.0f} tokens/s"
    text = f"{counted(num_prompt, 'prompt token')}, {num_generated:,} generated in {seconds:.2f} s ({speed}"
    if len(outputs) == 1 and num_generated > 1:
        decode = (num_generated - 1) / max(last - first, 1e-9)
        text += f"; first token after {first - begin:.2f} s, then {decode:.0f} tokens/s"
    weights = ", ".join(f"{size / 1e6:.0f} MB {name}" for name, size in llm.llm_engine.weight_formats.items())
    return [*_endings(llm, outputs, params), f"{text}), weights {weights}"]


def _endings(llm: LLM, outputs: Sequence[RequestOutput], params: SamplingParams) -> list[str]:
    """Return a sentence for each reason for which answers ended before their model ended them."""
    reasons = [ending(llm, output, completion, params) for output in outputs for completion in output.outputs]
    return [
        f"Answer {reason}." if len(reasons) == 1 else f"{number:,} of {len(reasons):,} answers {reason}."
        for reason, number in Counter(filter(None, reasons)).items()
    ]


def ending(llm: LLM, output: RequestOutput, completion: CompletionOutput, params: SamplingParams) -> str | None:
    """Return why an answer ended, as in "cut after 5 tokens", unless its model ended it, or it failed."""
    if isinstance(completion.stop_reason, str):
        return f"ended at --stop {completion.stop_reason!r}"
    if completion.finish_reason != "length":
        return None
    # The output may hold what is new alone; then it is that of a single completion.
    stats = output.metrics if len(output.outputs) == 1 else None
    num_tokens = len(completion.token_ids) if stats is None else stats.num_generation_tokens
    if params.max_tokens is not None and num_tokens >= params.max_tokens:
        return f"cut after {counted(num_tokens, 'token')}, by --max-tokens"
    limit = llm.llm_engine.max_model_len
    if len(output.prompt_token_ids or ()) + num_tokens < limit:
        return "cut where the KV cache was full; --kv-cache-memory-bytes makes it larger"
    way_out = named_by_flags(llm.llm_engine.way_to_more_length)
    return f"cut where prompt and answer filled the context of {counted(limit, 'token')}; for more, {way_out}"
