"""OpenVINO GenAI under the driver: continuous batching on a model converted before.

To convert: `optimum-cli export openvino --model HF_DIR --task text-generation-with-past --weight-format int8 OV_DIR`,
then its tokenizer into OV_DIR with `openvino_tokenizers.convert_tokenizer` and `openvino.save_model`.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any

import driver


class OpenVino:
    """A pipeline with a KV cache of its own."""

    def __init__(self, job: dict[str, Any]) -> None:
        import openvino
        import openvino_genai

        self.version = metadata.version("openvino-genai")
        self._genai, self._tensor = openvino_genai, openvino.Tensor
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 4
        scheduler.max_num_batched_tokens = 512
        scheduler.max_num_seqs = 256
        scheduler.enable_prefix_caching = False
        scheduler.dynamic_split_fuse = True
        properties = {"INFERENCE_NUM_THREADS": job["threads"], **job["options"]}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(job["model"], scheduler, "CPU", {}, properties)

    def generate(self, prompts: list[list[int]], output_lens: list[int]) -> int:
        """See `driver.Engine`."""
        import numpy as np

        tensors = [self._tensor(np.array([ids], dtype=np.int64)) for ids in prompts]
        results = self._pipeline.generate(tensors, [self._config(length) for length in output_lens])
        return sum(len(result.m_generation_ids[0]) for result in results)

    def _config(self, output_len: int) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = output_len
        config.ignore_eos = True
        config.do_sample = False
        config.eos_token_id = 2
        return config


if __name__ == "__main__":
    driver.main(OpenVino)
