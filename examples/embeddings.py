"""Which of some texts is nearest to a question, by their embeddings. `python examples/embeddings.py [MODEL]`"""

from __future__ import annotations

import sys

from octavo import LLM, PoolingParams

TEXTS = ["Paris is the capital of France.", "A cat slept in the sun.", "The Seine flows through Paris."]


def main(model: str = "smollm2-135m") -> None:
    # A model that was trained for it gives better ones, such as Qwen/Qwen3-Embedding-0.6B.
    with LLM(model, max_model_len=512, pooling_type="mean") as llm:
        outputs = llm.embed(TEXTS, pooling_params=PoolingParams(dimensions=32), use_tqdm=False)
        scores = llm.score("What is the capital of France?", TEXTS, use_tqdm=False)
        for text, output, score in zip(TEXTS, outputs, scores, strict=True):
            numbers = ", ".join(f"{value:+.3f}" for value in output.outputs.embedding[:4])
            print(f"{score.outputs.score:+.3f}  {text}  [{numbers}, ...] ({output.outputs.hidden_size} numbers)")


if __name__ == "__main__":
    main(*sys.argv[1:])
