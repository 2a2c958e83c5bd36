"""Octavo under the driver: the same way of measuring as for every other engine."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import driver

from octavo import LLM, SamplingParams


class Octavo:
    """Token ids in, token ids out."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.version = _version()
        options = {"num_threads": job["threads"], "enable_prefix_caching": False, **job["options"]}
        self._llm = LLM(job["model"], **options)

    def generate(self, prompts: list[list[int]], output_lens: list[int]) -> int:
        """See `driver.Engine`."""
        params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in output_lens]
        outputs = self._llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)


def _version() -> str:
    try:
        return metadata.version("octavo")
    except metadata.PackageNotFoundError:
        return "of the source tree"


if __name__ == "__main__":
    driver.main(Octavo)
