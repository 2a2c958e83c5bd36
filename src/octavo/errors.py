"""Every exception Octavo raises on purpose, in one tree.

A message gives the value, the limit and the way out. `code` is a stable, machine-readable name that also
appears in `RequestOutput.error` and, later, in HTTP bodies.
"""

from __future__ import annotations

import shlex
import sys


class OctavoError(Exception):
    """Base of all errors raised by Octavo."""

    code = "octavo_error"


class ConfigError(OctavoError, ValueError):
    """An engine option has a value that cannot work."""

    code = "config_error"


class ModelLoadError(OctavoError):
    """A model file is missing, malformed, or of a kind that is not supported."""

    code = "model_load_error"


class RequestError(OctavoError, ValueError):
    """A prompt or its sampling parameters cannot be served.

    Also a `ValueError`, because code written for older vLLM releases catches that.
    """

    code = "request_error"

    def __init__(self, message: str, *, parameter: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.value = value


class GrammarError(RequestError):
    """The form that a request's output must have cannot be followed any further: nothing fits, or it is too complex."""

    code = "grammar_error"


class EngineDeadError(OctavoError):
    """The engine was closed, has failed, or belongs to another process."""

    code = "engine_dead"


class QueueFullError(OctavoError):
    """As many requests wait as may; another may be accepted later."""

    code = "queue_full"


class RequestTimeoutError(OctavoError):
    """A request took longer than it may; what it had made so far is lost."""

    code = "request_timeout"


class NativeError(OctavoError):
    """The native module is missing, or the CPU cannot run the requested ISA level."""

    code = "native_error"


class StepCancelledError(OctavoError):
    """A step was cancelled before it finished; nothing of it was published."""

    code = "step_cancelled"


def install_line(extra: str) -> str:
    """Return the command that adds an extra's packages to the environment that runs this."""
    return f"{shlex.quote(sys.executable)} -m pip install 'octavo[{extra}]'"
