"""What an `AsyncLLM` says of itself at once, without asking its engine's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from octavo.errors import EngineDeadError
from octavo.vllm_options import refuse_sleep

if TYPE_CHECKING:
    from octavo.frontend.engine_metrics import Metric
    from octavo.frontend.llm_engine import LLMEngine
    from octavo.frontend.model_config import ModelConfig
    from octavo.tokenizer.tokenizer import Tokenizer


class AsyncFacts:
    """The part of `AsyncLLM` that tells facts."""

    engine: LLMEngine
    errored: bool
    """Whether the engine has failed."""
    _refusal: str | None
    """Why no request is taken any more."""

    @property
    def is_running(self) -> bool:
        """Whether requests are served."""
        return self._refusal is None

    @property
    def dead_error(self) -> EngineDeadError:
        """What a call of an engine that has failed or was closed raises."""
        return EngineDeadError(self._refusal or "the engine serves requests.")

    @property
    def model_config(self) -> ModelConfig:
        """What the model is, and what is served of it."""
        return self.engine.model_config

    async def get_model_config(self) -> ModelConfig:
        """Return `model_config`."""
        return self.model_config

    async def get_metrics(self) -> list[Metric]:
        """Return counters, gauges and histograms, under vLLM's names."""
        return self.engine.read_metrics()

    async def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return self.engine.tokenizer

    async def sleep(self, *_given: object, **_options: object) -> NoReturn:
        """Not supported. Raises: `ConfigError` that says what to do instead."""
        refuse_sleep()

    async def wake_up(self, *_given: object, **_options: object) -> NoReturn:
        """Not supported, as `sleep`."""
        refuse_sleep()

    async def is_sleeping(self) -> bool:
        """Whether the engine sleeps, which it never does."""
        return False
