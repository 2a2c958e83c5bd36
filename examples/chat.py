"""A chat of two turns; the second finds the first in the cache. `python examples/chat.py [MODEL]`"""

from __future__ import annotations

import sys

from octavo import LLM, SamplingParams


def main(model: str = "smollm2-135m") -> None:
    params = SamplingParams(temperature=0, max_tokens=48)
    messages = [{"role": "system", "content": "You answer in one short sentence."}]
    with LLM(model) as llm:
        for question in ("What is gravity?", "Who described it first?"):
            messages.append({"role": "user", "content": question})
            (output,) = llm.chat(messages, params, use_tqdm=False)
            answer = output.outputs[0].text
            messages.append({"role": "assistant", "content": answer})
            print(f"> {question}\n{answer}")
            print(f"({output.num_cached_tokens} of the {len(output.prompt_token_ids or ())} prompt tokens were cached)")


if __name__ == "__main__":
    main(*sys.argv[1:])
