"""Several streams at once from an asyncio program; one is left early. `python examples/async_streams.py [MODEL]`"""

from __future__ import annotations

import asyncio
import sys

from octavo import AsyncLLM, EngineConfig, RequestOutputKind, SamplingParams

PROMPTS = ["The capital of France is", "Count: one, two,", "My name is"]


async def follow(llm: AsyncLLM, index: int, max_chars: int) -> None:
    """Print the text of a stream when it ends, or when it is long enough: leaving the loop ends the request."""
    params = SamplingParams(temperature=0, max_tokens=24, output_kind=RequestOutputKind.DELTA)
    text, ended = "", "left early"
    async for output in llm.generate(PROMPTS[index], params, f"stream {index}"):
        text += output.outputs[0].text
        ended = output.outputs[0].finish_reason or ended
        if len(text) > max_chars:
            break
    print(f"stream {index} ({ended}): {text!r}")


async def main(model: str = "smollm2-135m") -> None:
    """Run all streams on one engine."""
    llm = AsyncLLM.from_engine_args(EngineConfig(model))
    await asyncio.gather(*(follow(llm, index, max_chars=10 if index == 2 else 1_000) for index in range(len(PROMPTS))))
    print(f"{llm.num_unfinished} requests run")
    llm.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
