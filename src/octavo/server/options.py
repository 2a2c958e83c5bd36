"""Options of the server itself: what `octavo serve` has beside those of the engine. Each field is a flag."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Literal

from octavo.errors import ConfigError
from octavo.server.parsers.formats import choose_format

LogFormat = Literal["text", "json"]
OnEngineFailure = Literal["exit", "restart"]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How the server listens, whom it serves, and what it bears. Raises: `ConfigError` for a value that cannot work."""

    host: str = "127.0.0.1"
    """Address to listen on: this machine only, unless told otherwise; 0.0.0.0 is every network it is in."""
    port: int = 8000
    """Port to listen on; 0 takes a free one, which the log names."""
    uds: str | None = None
    """Path of a Unix socket to listen on instead."""
    api_key: tuple[str, ...] = ()
    """Key that every request must bring, as a bearer token or as x-api-key, but those for /health, /ping, /version and
    the dashboard's page, which asks for it; may be given several times. White space around it, as a
    file ends with, does not count. Also read from OCTAVO_API_KEY, which does not show in the list of processes."""
    disable_dashboard: bool = False
    """Do not serve /dashboard, the page that shows the engine at work."""
    served_model_name: tuple[str, ...] = ()
    """Name of the model in the API; may be given several times, answers have the first. Default: the model as given."""
    chat_template: str | None = None
    """File with a Jinja chat template, or the template itself, instead of the model's."""
    tool_call_parser: str = "auto"
    """Form in which the model writes tool calls: a parser's name as in vLLM, "auto" to see it from the chat template,
    or "none" to leave calls in the text."""
    reasoning_parser: str = "auto"
    """Form of the model's thoughts: a parser's name as in vLLM, "auto" to see it from the chat template, or "none" to
    leave them in the text."""
    enable_auto_tool_choice: bool = True
    """Let models call tools where a request leaves the choice to them; without it, such requests are refused."""
    trust_request_chat_template: bool = False
    """Let requests bring their own chat template. It runs in a sandbox with limits, but is a stranger's program."""
    chat_template_timeout: float = 5.0
    """Seconds of CPU time that a chat template may take."""
    chat_template_max_chars: int = 16_000_000
    """Characters that a chat template may write."""
    max_num_queued_reqs: int = 1024
    """Requests that may wait for their first step; more get 503 with Retry-After. Prompts of one call count each, but
    a call that finds nobody waiting is always taken."""
    request_timeout: float | None = None
    """Seconds until a request is ended with an error, waiting included. Default: no limit."""
    max_body_bytes: int = 16 << 20
    """Bytes of a request's body."""
    max_json_depth: int = 64
    """How deep the JSON of a body may be nested."""
    max_json_parts: int = 1 << 18
    """Lists, objects and keys in the JSON of a body: what takes long to read. Values may be four times as many."""
    max_headers: int = 128
    """Headers of a request."""
    max_header_bytes: int = 64 << 10
    """Bytes of a request's line and headers together."""
    receive_timeout: float = 30.0
    """Seconds in which the head of a request must arrive, and again its body."""
    send_timeout: float = 60.0
    """Seconds after which a client that reads nothing of its answer is dropped."""
    shutdown_timeout: float = 30.0
    """Seconds that running requests have to end after SIGTERM; a second signal ends the process at once."""
    engine_hang_timeout: float = 30.0
    """Seconds without any progress within a step after which the engine counts as failed; /health says so after 3."""
    on_engine_failure: OnEngineFailure = "exit"
    """What to do when the engine has failed, after telling all clients: "exit" with status 1, or "restart" this process
    in place, which loads the model again; within 10 seconds after its start it exits all the same."""
    root_path: str = ""
    """Path prefix that a proxy in front takes off."""
    ssl_keyfile: str | None = None
    """File of the TLS key."""
    ssl_certfile: str | None = None
    """File of the TLS certificate; with it the server speaks HTTPS."""
    ssl_ca_certs: str | None = None
    """File of the certificates that clients' certificates must come from."""
    ssl_cert_reqs: int = 0
    """Whether clients need a certificate: 0 no, 1 optional, 2 required."""
    allowed_origins: tuple[str, ...] = ()
    """Origin whose web pages may call the server from a browser (CORS); may be given several times, or as a
    JSON list; "*" is all. Default: none."""
    allow_credentials: bool = False
    """Let such pages send cookies and authentication."""
    uvicorn_log_level: Literal["critical", "error", "warning", "info", "debug"] = "info"
    """How much the HTTP server logs."""
    disable_uvicorn_access_log: bool = False
    """Do not log a line for each HTTP request."""
    enable_log_requests: bool = False
    """Log what each generation request asks for, without its text."""
    log_format: LogFormat = "text"
    """Form of the log's lines: "text", or "json" for a collector."""
    enable_force_include_usage: bool = False
    """End every stream with its token counts, asked for or not."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "allowed_origins", tuple(_listed("allowed_origins", self.allowed_origins)))
        object.__setattr__(self, "api_key", tuple(key.strip() for key in self.api_key))
        if "" in self.api_key:
            way_out = "leave it out to serve everybody, and OCTAVO_API_KEY unset"
            raise ConfigError(f"api_key is empty, so it would keep nobody out: give a key, or {way_out}.")
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            if not math.isfinite(value) or value < 0 or (value == 0 and entry.name not in _MAY_BE_ZERO):
                raise ConfigError(f"{entry.name} must be a positive number, got {value!r}.")
            if isinstance(value, float) and value > _MOST_SECONDS:
                raise ConfigError(f"{entry.name} must be at most {_MOST_SECONDS:g} seconds, got {value!r}.")
        if self.port > 65_535:
            raise ConfigError(f"port must be in [0, 65535], got {self.port!r}.")
        if self.ssl_cert_reqs not in (0, 1, 2):
            raise ConfigError(f"ssl_cert_reqs must be 0, 1 or 2, got {self.ssl_cert_reqs!r}.")
        if "" in self.served_model_name:
            raise ConfigError(
                "served_model_name must not be empty: leave it out to serve the model under its own name."
            )
        choose_format([], tool_parser=self.tool_call_parser, reasoning_parser=self.reasoning_parser)


def _listed(name: str, values: Iterable[str]) -> Iterator[str]:
    """Yield values, those of JSON lists among them, as vLLM's flag takes them, one by one. Raises: `ConfigError`."""
    for value in values:
        if not value.startswith("["):
            yield value
            continue
        try:
            entries = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{name} {value!r:.80} is no JSON list: {error}.") from None
        if not all(isinstance(entry, str) for entry in entries):
            raise ConfigError(f"{name} must be texts, got {value!r}.")
        yield from entries


_MAY_BE_ZERO = frozenset({"port", "ssl_cert_reqs", "shutdown_timeout"})
_MOST_SECONDS = 1e9
"""Clocks of the system take no more."""
