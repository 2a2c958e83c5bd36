"""Drive the engine yourself: requests come and go between its steps. `python examples/engine_loop.py [MODEL]`"""

from __future__ import annotations

import sys

from octavo import EngineConfig, LLMEngine, RequestError, SamplingParams

SHORT = SamplingParams(temperature=0, max_tokens=8)
ENDLESS = SamplingParams(temperature=0, max_tokens=7_000, ignore_eos=True)
ARRIVALS = {
    0: [("unwanted", "Once upon a time,", 1, ENDLESS), ("ordinary", "My name is", 1, SHORT)],
    1: [("urgent", "The capital of France is", 0, SHORT)],
    2: [("late", "Count: one, two,", 2, SHORT), ("bad", "", 0, SHORT)],
}
"""Call of `step` -> requests (id, prompt, priority, parameters); lower goes first. The engine waits for none."""


def main(model: str = "smollm2-135m") -> None:
    # One seat, which `unwanted` takes; the others queue behind it by priority until it is aborted.
    engine = LLMEngine.from_engine_args(EngineConfig(model, max_num_seqs=1, scheduling_policy="priority"))
    num_calls = 0
    while num_calls <= max(ARRIVALS) or engine.has_unfinished_requests():
        for request_id, prompt, priority, params in ARRIVALS.get(num_calls, ()):
            try:
                engine.add_request(request_id, prompt, params, priority=priority)
            except RequestError as error:
                print(f"{request_id}: {error}")
        if num_calls == 4:
            engine.abort_request("unwanted")
        for output in engine.step():
            if output.finished:
                print(f"{output.request_id}: {output.outputs[0].text!r}")
        num_calls += 1
    for metric in engine.get_metrics():
        print(metric.name, *metric.labels.values(), metric.value)
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
