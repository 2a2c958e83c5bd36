"""An answer printed while it is made; leaving the loop ends the request. `python examples/stream.py [MODEL]`"""

from __future__ import annotations

import sys

from octavo import LLM, RequestOutputKind, SamplingParams


def main(model: str = "smollm2-135m") -> None:
    messages = [{"role": "user", "content": "Tell me a story about a lighthouse."}]
    params = SamplingParams(max_tokens=200, seed=1, output_kind=RequestOutputKind.DELTA)
    num_words = 0
    with LLM(model) as llm:
        for output in llm.stream_chat(messages, params):
            text = output.outputs[0].text  # DELTA: only what is new; the default is all so far
            print(text, end="", flush=True)
            num_words += text.count(" ")
            if num_words >= 60:
                break
    print(" ...")


if __name__ == "__main__":
    main(*sys.argv[1:])
