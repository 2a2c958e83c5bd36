"""What vLLM's `model_config` is read for: which model is served, how long, how wide, of which numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Facts of the model that an engine serves. Options as they were given are in `EngineConfig`."""

    model: str
    """As it was asked for."""
    tokenizer: str
    max_model_len: int
    """Limit of prompt plus output of one request, in tokens."""
    vocab_size: int
    """Width of the logits, which may exceed what the tokenizer knows."""
    hidden_size: int
    quantization: str | None = None
    """How float weights were rounded while loading; None: as the file stores them."""
    dtype: str = "float32"
    """Of the arithmetic, or exact integers with scales of it."""

    def get_vocab_size(self) -> int:
        """Return the width of the logits."""
        return self.vocab_size

    def get_hidden_size(self) -> int:
        """Return the width of the hidden states."""
        return self.hidden_size
