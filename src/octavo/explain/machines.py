"""Peaks of machines as their makers publish them: dense arithmetic (no sparsity), and memory bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.errors import ConfigError

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


@dataclass(frozen=True, slots=True)
class Machine:
    """What one device can do at most."""

    name: str
    title: str
    flops_per_s: Mapping[str, float]
    """By dtype of what is multiplied; a multiply-add counts as two."""
    bytes_per_s: float
    source: str

    def peak(self, dtype: str) -> float:
        """Return operations per second. Raises: `ConfigError` for a dtype whose peak is not known."""
        if dtype not in self.flops_per_s:
            raise ConfigError(f"dtype must be one of {', '.join(self.flops_per_s)} on {self.title}, got {dtype!r}.")
        return self.flops_per_s[dtype]


def published_machine(name: str) -> Machine:
    """Return a machine of the table. Raises: `ConfigError`."""
    key = name.lower()
    if key not in MACHINES:
        raise ConfigError(f"machine must be one of {', '.join(MACHINES)}, or left out for this one; got {name!r}.")
    return MACHINES[key]


def _gpu(title: str, half: float, int8: float, float32: float, terabytes: float, source: str) -> Machine:
    """Make a device from TFLOP/s, TOP/s and TB/s."""
    flops = {"float32": float32, "bfloat16": half, "float16": half, "int8": int8}
    peaks = {dtype: peak * 1e12 for dtype, peak in flops.items() if peak}
    return Machine(title.split()[-1].lower(), title, peaks, terabytes * 1e12, source)


MACHINES: Mapping[str, Machine] = {
    machine.name: machine
    for machine in (
        _gpu("NVIDIA H100", 990, 1979, 67, 3.35, "NVIDIA H100 Tensor Core GPU data sheet, SXM; with sparsity: twice"),
        _gpu("NVIDIA H200", 990, 1979, 67, 4.8, "NVIDIA H200 Tensor Core GPU data sheet, SXM; with sparsity: twice"),
        _gpu("NVIDIA A100", 312, 624, 19.5, 2.039, "NVIDIA A100 Tensor Core GPU data sheet, 80 GB SXM"),
        _gpu("NVIDIA L40S", 362, 733, 91.6, 0.864, "NVIDIA L40S GPU data sheet"),
        _gpu("NVIDIA L4", 121, 242, 30.3, 0.3, "NVIDIA L4 Tensor Core GPU data sheet; with sparsity: twice"),
        _gpu("NVIDIA T4", 65, 130, 8.1, 0.32, "NVIDIA T4 Tensor Core GPU data sheet; 65 is float16"),
        _gpu("AMD MI300X", 1307.4, 2614.9, 163.4, 5.3, "AMD Instinct MI300X accelerator data sheet"),
        _gpu("Google TPU-v5e", 197, 393, 0, 0.819, "Google Cloud documentation, TPU v5e system architecture"),
    )
}
