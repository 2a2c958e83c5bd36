"""The tensor types of GGUF: the ones Octavo reads, with their block sizes, and the names of the rest."""

from __future__ import annotations

from enum import Enum


class GgufType(Enum):
    """A tensor type Octavo reads: its id in the file, and how many elements share a block of how many bytes.

    Q4_Z is in no GGUF file: checkpoints that have a zero point per group are recoded to it. Its blocks are those of
    Q4_1, but with the negated zero point, a float16 too, where that has the minimum.
    """

    F32 = (0, 1, 4)
    F16 = (1, 1, 2)
    Q4_0 = (2, 32, 18)
    Q4_1 = (3, 32, 20)
    Q5_0 = (6, 32, 22)
    Q5_1 = (7, 32, 24)
    Q8_0 = (8, 32, 34)
    Q2_K = (10, 256, 84)
    Q3_K = (11, 256, 110)
    Q4_K = (12, 256, 144)
    Q5_K = (13, 256, 176)
    Q6_K = (14, 256, 210)
    IQ4_NL = (20, 32, 18)
    IQ4_XS = (23, 256, 136)
    BF16 = (30, 1, 2)
    MXFP4 = (39, 32, 17)
    Q4_Z = (-1, 32, 20)

    def __init__(self, type_id: int, block_elements: int, block_bytes: int) -> None:
        self.type_id = type_id
        self.block_elements = block_elements
        self.block_bytes = block_bytes


SUPPORTED_TYPES: dict[int, GgufType] = {t.type_id: t for t in GgufType if t.type_id >= 0}
"""Those that a GGUF file can have, by id."""

UNSUPPORTED_TYPE_NAMES: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    34: "TQ1_0",
    35: "TQ2_0",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
    40: "NVFP4",
    41: "Q1_0",
}


def supported_names() -> str:
    """Return the names of the supported types, for error messages."""
    return ", ".join(t.name for t in SUPPORTED_TYPES.values())
