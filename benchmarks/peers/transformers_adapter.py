"""Hugging Face transformers under the driver: static batches in float32, each as long as its longest request."""

from __future__ import annotations

from typing import Any

import driver

_MAX_BATCH = 64


class Transformers:
    """Batches of at most 64, in the order given; shorter prompts are padded on the left."""

    def __init__(self, job: dict[str, Any]) -> None:
        import torch
        import transformers

        torch.set_num_threads(job["threads"])
        self.version = transformers.__version__
        self._torch = torch
        self._model = transformers.AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32).eval()

    def generate(self, prompts: list[list[int]], output_lens: list[int]) -> int:
        """See `driver.Engine`. Tokens past a request's own length are made, and not counted."""
        for start in range(0, len(prompts), _MAX_BATCH):
            end = start + _MAX_BATCH
            self._generate_batch(prompts[start:end], max(output_lens[start:end]))
        return sum(output_lens)

    def _generate_batch(self, prompts: list[list[int]], output_len: int) -> None:
        longest = max(map(len, prompts))
        ids = self._torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = self._torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        lengths = {"max_new_tokens": output_len, "min_new_tokens": output_len}
        with self._torch.inference_mode():
            made = self._model.generate(ids, attention_mask=mask, do_sample=False, pad_token_id=0, **lengths)
        if made.shape[1] != longest + output_len:
            raise SystemExit(f"{made.shape[1] - longest} tokens came, {output_len} were asked for")


if __name__ == "__main__":
    driver.main(Transformers)
