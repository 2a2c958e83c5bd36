"""Does a long prompt stall the others? Eight requests decode, a long prompt arrives; prints JSON.

usage: python benchmarks/stall.py MODEL OPTIONS PROMPT_LEN OUTPUT_LEN, OPTIONS being the engine's, as JSON
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from typing import Any

import numpy as np

from octavo import EngineConfig, LLMEngine, SamplingParams
from octavo.bench.workload import Workload
from octavo.sampling_params import RequestOutputKind

NUM_DECODING = 8


def gaps_ms(model: str, options: dict[str, Any], prompt_len: int, output_len: int) -> list[float]:
    """Return the times between tokens of the decoding requests; a prompt of `prompt_len` arrives unless that is 0."""
    config = EngineConfig(model, **{"enable_prefix_caching": False, **options})
    engine = LLMEngine.from_engine_args(config)
    try:
        return _gaps_ms(engine, prompt_len, output_len)
    finally:
        engine.close()


def _gaps_ms(engine: LLMEngine, prompt_len: int, output_len: int) -> list[float]:
    def prompts(count: int, length: int) -> list[dict[str, Any]]:
        items = Workload(input_len=length, output_len=1, num_prompts=count).items(engine.tokenizer, length + 1)
        return [{"prompt_token_ids": item.prompt} for item in items]

    params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    for index, prompt in enumerate(prompts(NUM_DECODING, 32)):
        engine.add_request(str(index), prompt, params)
    times: dict[str, list[float]] = defaultdict(list)
    has_arrived = prompt_len == 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert output.metrics is not None
            times[output.request_id].append(output.metrics.last_token_ts)
        if not has_arrived and len(times["0"]) >= output_len // 3:
            has_arrived = True
            (long_prompt,) = prompts(1, prompt_len)
            engine.add_request("long", long_prompt, SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
    seconds = np.concatenate([np.diff(times[str(index)]) for index in range(NUM_DECODING)])
    return list(seconds * 1e3)


def main() -> None:
    """Measure alone, with the prompt, and with the prompt and a target of twice the usual gap."""
    model, options = sys.argv[1], json.loads(sys.argv[2])
    prompt_len, output_len = int(sys.argv[3]), int(sys.argv[4])
    alone = gaps_ms(model, options, 0, output_len)
    target = 2.0 * float(np.median(alone))
    runs = {
        "alone": alone,
        "long prompt": gaps_ms(model, options, prompt_len, output_len),
        "long prompt, target_itl_ms": gaps_ms(model, {**options, "target_itl_ms": target}, prompt_len, output_len),
    }
    p99 = {name: float(np.percentile(gaps, 99)) for name, gaps in runs.items()}
    print(json.dumps({"prompt_len": prompt_len, "target_itl_ms": target, "p99_itl_ms": p99}))


if __name__ == "__main__":
    main()
