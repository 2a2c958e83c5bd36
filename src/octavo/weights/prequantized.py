"""Checkpoints that were quantised before: what their config says of it, and which tensors make up a matrix.

Weight-only integers are read: AWQ (4 bits), GPTQ and compressed-tensors (8 and 4 bits). Whatever else a config asks for
is refused by its name, since a weight read in the wrong way is a number like any other.

Source: the packing code of AutoGPTQ, AutoAWQ and compressed-tensors, whose tensors these are.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from octavo.errors import ModelLoadError
from octavo.formats.gguf_types import GgufType, supported_names
from octavo.formats.safetensors import SafetensorsTensor
from octavo.weights.grouped import GroupedWeights
from octavo.weights.module_tensors import ModuleTensors, read_awq, read_compressed, read_gptq

logger = logging.getLogger("octavo")

_CONFIG_KEYS = ("quantization_config", "compression_config")
_GPTQ_FORMATS = ("gptq", "gptq_v2")
_COMPRESSED_FORMATS = ("pack-quantized", "int-quantized")
_SUPPORTED = "AWQ with 4 bits, GPTQ and compressed-tensors with integer weights of 8 or 4 bits"


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the matrices of a checkpoint are stored."""

    name: str
    parts: frozenset[str]
    """Last parts of the names of the tensors that a module has in place of its weight."""
    markers: frozenset[str]
    """Those that hold the codes: every quantised module has one."""
    read: Callable[[ModuleTensors], GroupedWeights]

    def split(
        self, tensors: Iterable[SafetensorsTensor]
    ) -> tuple[dict[str, dict[str, SafetensorsTensor]], list[SafetensorsTensor]]:
        """Return the parts of each quantised module by its name, and the tensors that belong to none."""
        tensors = list(tensors)
        marked = {
            module
            for module, part, tensor in _named_parts(tensors)
            if part in self.markers and tensor.dtype in ("I32", "I8")
        }
        modules: dict[str, dict[str, SafetensorsTensor]] = {module: {} for module in sorted(marked)}
        rest = []
        for module, part, tensor in _named_parts(tensors):
            if module in marked and part in self.parts:
                modules[module][part] = tensor
            else:
                rest.append(tensor)
        return modules, _without_zero_biases(rest, marked)


def _named_parts(tensors: Iterable[SafetensorsTensor]) -> Iterable[tuple[str, str, SafetensorsTensor]]:
    for tensor in tensors:
        module, _, part = tensor.name.rpartition(".")
        yield module, part, tensor


def _without_zero_biases(tensors: list[SafetensorsTensor], modules: set[str]) -> list[SafetensorsTensor]:
    """Drop the biases of quantised modules if all are zeros: some tools write them for models that have none."""
    biases = [tensor for module, part, tensor in _named_parts(tensors) if part == "bias" and module in modules]
    if not biases or any(bias.data.any() for bias in biases):
        return tensors
    dropped = {bias.name for bias in biases}
    return [tensor for tensor in tensors if tensor.name not in dropped]


def read_scheme(config: Mapping[str, object], source: str) -> Scheme | None:
    """Return how a config.json says its weights are quantised, None if they are not.

    Raises: ModelLoadError that names a method or an option that is not supported.
    """
    text = config.get("text_config")
    for part in (config, text if isinstance(text, Mapping) else {}):
        for key in _CONFIG_KEYS:
            values = part.get(key)
            if values is not None:
                return _scheme(_Options(values, f"{source}: {key}"))
    return None


class _Options:
    """One JSON object that says how something is quantised."""

    def __init__(self, values: object, source: str) -> None:
        self.source = source
        if not isinstance(values, Mapping):
            self.refuse(f"is a {type(values).__name__}, expected an object")
        self.values: Mapping[str, object] = values

    def refuse(self, problem: str) -> NoReturn:
        raise ModelLoadError(
            f"{self.source} {problem}; supported: {_SUPPORTED}, weights in F32, F16 or BF16 (which quantization='q4'"
            f" rounds), and GGUF in {supported_names()}"
        )

    def name(self, key: str, default: str = "") -> str:
        """Return a name in lower case."""
        value = self.values.get(key) or default
        return value.lower() if isinstance(value, str) else self.refuse(f"{key} is {value!r:.200}, not a name")

    def expect(self, key: str, expected: tuple[object, ...]) -> None:
        """Refuse any other value than those; None stands for an absent one."""
        value = self.values.get(key)
        if not any(value == choice and type(value) is type(choice) for choice in expected):
            self.refuse(f"{key} is {value!r:.200}, which is not supported")

    def nested(self, key: str) -> _Options:
        return _Options(self.values.get(key), f"{self.source}: {key}")


def _scheme(options: _Options) -> Scheme:
    method = options.name("quant_method", options.name("quant_algo", "an unnamed method"))
    readers = {"gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed}
    if method not in readers:
        options.refuse(f"says that the weights are quantised with {method}, which is not supported")
    return readers[method](options)


def _gptq(options: _Options) -> Scheme:
    options.expect("bits", (4, 8))
    options.expect("dynamic", (None, {}))
    options.expect("pack_dtype", (None, "int32"))
    form = options.name("checkpoint_format", options.name("format", "gptq"))
    if form not in _GPTQ_FORMATS:
        options.refuse(f"the checkpoint format {form!r} is not supported, {' and '.join(_GPTQ_FORMATS)} are")
    bits, group_size = _integer(options, "bits"), _integer(options, "group_size")
    added = 1 if form == "gptq" else 0
    return Scheme(
        "GPTQ",
        frozenset({"qweight", "qzeros", "scales", "g_idx"}),
        frozenset({"qweight"}),
        lambda module: read_gptq(module, bits, group_size, added),
    )


def _awq(options: _Options) -> Scheme:
    key = "bits" if "bits" in options.values else "w_bit"
    options.expect(key, (4,))
    version = options.name("version", "gemm")
    if version != "gemm":
        options.refuse(f"the AWQ version {version!r} is not supported, gemm is")
    group_size = _integer(options, "group_size" if "group_size" in options.values else "q_group_size")
    return Scheme(
        "AWQ",
        frozenset({"qweight", "qzeros", "scales"}),
        frozenset({"qweight"}),
        lambda module: read_awq(module, group_size),
    )


def _compressed(options: _Options) -> Scheme:
    form = options.name("format", "without a name")
    if form not in (*_COMPRESSED_FORMATS, "mixed-precision"):
        known = " and ".join(_COMPRESSED_FORMATS)
        options.refuse(f"the format {form!r} of compressed-tensors is not supported, {known} are")
    options.expect("kv_cache_scheme", (None,))
    sparsity = options.values.get("sparsity_config")
    if sparsity and _Options(sparsity, options.source).name("format", "dense") != "dense":
        options.refuse("sparsity_config: sparse weights are not supported")
    groups = options.nested("config_groups")
    for name in groups.values:
        _check_compressed_group(groups.nested(name))
    codes = frozenset({"weight", "weight_packed"})
    others = ("weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")
    return Scheme("compressed-tensors", codes.union(others), codes, read_compressed)


def _check_compressed_group(group: _Options) -> None:
    if group.name("format", "pack-quantized") not in _COMPRESSED_FORMATS:
        group.refuse(f"the format {group.name('format')!r} is not supported")
    for key in ("input_activations", "output_activations"):
        if group.values.get(key) is not None:
            group.refuse(f"{key} asks for quantised activations, which is not supported: only weights may be quantised")
    weights = group.nested("weights")
    weights.expect("type", (None, "int"))
    weights.expect("num_bits", (8, 4))
    weights.expect("strategy", (None, "group", "channel", "tensor"))
    weights.expect("dynamic", (None, False))


def _integer(options: _Options, key: str) -> int:
    value = options.values.get(key)
    if type(value) is not int or not (value == -1 or value >= 1):
        options.refuse(f"{key} is {value!r:.200}, not a positive integer or -1")
    return value


def warn_of_floats(kinds: Iterable[GgufType], source: str) -> None:
    """Say so if matrices fit none of the quantised codes: they take much more memory."""
    counts = Counter(kinds)
    if counts[GgufType.F32]:
        logger.warning(
            "%s: %d of %d quantised matrices become float32, which holds their values exactly: their groups are not"
            " runs of whole 32s (act-order), their scales do not fit float16, or 8 bits have a zero point",
            source,
            counts[GgufType.F32],
            counts.total(),
        )
