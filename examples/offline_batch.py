"""A batch of prompts, each with its own sampling, one of them bad. `python examples/offline_batch.py [MODEL]`"""

from __future__ import annotations

import sys

from octavo import LLM, SamplingParams


def main(model: str = "smollm2-135m") -> None:
    prompts = ["The capital of France is", "Once upon a time,", "", "The three primary colours are"]
    greedy = SamplingParams(temperature=0, max_tokens=16, stop=["\n"])
    three_ways = SamplingParams(n=3, seed=7, temperature=0.8, max_tokens=16, logprobs=0)
    with LLM(model, max_model_len=512) as llm:
        outputs = llm.generate(prompts, [greedy, three_ways, greedy, greedy], on_error="return", use_tqdm=False)
    for output in outputs:
        if output.error is not None:
            print(f"{output.prompt!r}: refused, {output.error.message}")
            continue
        print(repr(output.prompt))
        for completion in output.outputs:
            logprob = completion.cumulative_logprob  # None unless logprobs were asked for
            print(f"  {completion.text!r} ({completion.finish_reason}, logprob {logprob})")


if __name__ == "__main__":
    main(*sys.argv[1:])
