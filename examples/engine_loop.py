"""Drive the engine yourself: requests come and go between its steps. `python examples/engine_loop.py [MODEL]`"""

from __future__ import annotations

import sys

from octavo import EngineConfig, LLMEngine, RequestError, SamplingParams

ARRIVALS = {
    0: [("ordinary", "My name is", 1), ("unwanted", "Once upon a time,", 2), ("urgent", "The capital of France is", 0)],
    2: [("late", "Count: one, two,", 2), ("bad", "", 0)],
}
"""Step -> requests (id, prompt, priority); lower goes first. Steps do not wait for the caller."""


def main(model: str = "smollm2-135m") -> None:
    params = SamplingParams(temperature=0, max_tokens=8)
    engine = LLMEngine.from_engine_args(EngineConfig(model, max_num_seqs=1, scheduling_policy="priority"))
    num_steps = 0
    while num_steps <= max(ARRIVALS) or engine.has_unfinished_requests():
        for request_id, prompt, priority in ARRIVALS.get(num_steps, ()):
            try:
                engine.add_request(request_id, prompt, params, priority=priority)
            except RequestError as error:
                print(f"{request_id}: {error}")
        if num_steps == 4:
            engine.abort_request("unwanted")
        for output in engine.step():
            if output.finished:
                print(f"{output.request_id}: {output.outputs[0].text!r}, after {num_steps + 1} steps")
        num_steps += 1
    for metric in engine.get_metrics():
        print(metric.name, *metric.labels.values(), metric.value)
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
