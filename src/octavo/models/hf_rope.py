"""Reads the rope settings of a config.json, in either dialect, into a `RopeSpec`."""

from __future__ import annotations

from octavo.models.config_reader import ConfigReader
from octavo.models.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeScaling,
    RopeSpec,
    YarnScaling,
    longrope_attention_factor,
    yarn_attention_factor,
)

SUPPORTED_ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "su")


def read_rope(config: ConfigReader, layer_type: str, head_dim: int) -> RopeSpec:
    """Return the rope of the layers of one type."""
    settings = _settings(config, layer_type)
    partial = settings.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    rotary_dim = int(head_dim * partial)
    if not 2 <= rotary_dim <= head_dim or rotary_dim % 2:
        settings.fail("partial_rotary_factor", f"makes {rotary_dim} of {head_dim} dims rotate, expected an even number")
    theta = settings.number("rope_theta", config.number("rope_theta", 10_000.0))
    if theta <= 1.0:
        settings.fail("rope_theta", f"is {theta}, must be above 1")
    return RopeSpec(theta, rotary_dim, _scaling(config, settings, rotary_dim))


def _settings(config: ConfigReader, layer_type: str) -> ConfigReader:
    """Return the object with the settings: 5.x, 5.x per layer type, or 4.x."""
    parameters = config.nested("rope_parameters")
    if parameters is not None:
        return parameters.nested(layer_type) or parameters
    return config.nested("rope_scaling") or ConfigReader({}, config.source)


def _scaling(config: ConfigReader, settings: ConfigReader, rotary_dim: int) -> RopeScaling | None:
    kind = settings.text("rope_type", settings.text("type", "default"))
    if kind not in SUPPORTED_ROPE_TYPES:
        settings.fail("rope_type", f"is {kind!r}, supported: {', '.join(SUPPORTED_ROPE_TYPES)}")
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(settings.number("factor"))
    positions = config.size("max_position_embeddings", 2048)
    outer = config.size("original_max_position_embeddings", positions)
    original = settings.size("original_max_position_embeddings", outer)
    if kind == "dynamic":
        if rotary_dim < 4:
            settings.fail("rope_type", f"is dynamic, which needs at least 4 dims to rotate, not {rotary_dim}")
        return DynamicScaling(settings.number("factor"), original)
    if kind == "llama3":
        low, high = settings.number("low_freq_factor"), settings.number("high_freq_factor")
        if low >= high:
            settings.fail("low_freq_factor", f"is {low}, must be below high_freq_factor {high}")
        return Llama3Scaling(settings.number("factor"), low, high, original)
    factor = settings.number("factor", positions / original)
    if kind == "yarn":
        return _yarn(settings, factor, original)
    if original < 2:
        settings.fail("original_max_position_embeddings", f"is {original}, must be above 1")
    return LongRopeScaling(
        settings.numbers("short_factor", rotary_dim // 2),
        settings.numbers("long_factor", rotary_dim // 2),
        original,
        settings.number("attention_factor", longrope_attention_factor(factor, original)),
    )


def _yarn(settings: ConfigReader, factor: float, original: int) -> YarnScaling:
    attention_factor = yarn_attention_factor(factor)
    if settings.has("mscale") and settings.has("mscale_all_dim"):
        all_dims = yarn_attention_factor(factor, settings.number("mscale_all_dim"))
        attention_factor = yarn_attention_factor(factor, settings.number("mscale")) / all_dims
    return YarnScaling(
        factor,
        original,
        settings.number("attention_factor", attention_factor),
        settings.number("beta_fast", 32.0),
        settings.number("beta_slow", 1.0),
        settings.flag("truncate", True),
    )
