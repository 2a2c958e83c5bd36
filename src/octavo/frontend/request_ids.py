"""Two ids of one request: the one it was added with, and the core's own, which is never used twice."""

from __future__ import annotations

from typing import Any

from octavo.observe.events import EngineStalled, Event, StepFailed


def public_request_id(core_id: str) -> str:
    """Return the id that a request was added with: the core's own has the ordinal of its arrival after it."""
    return core_id.rpartition("#")[0]


def with_public_ids(event: Event) -> Event:
    """Return an event with the ids that its requests were added with."""
    changes: dict[str, Any] = {}
    for name in ("request_id", "by_request_id", "guilty_request_id"):
        core_id = getattr(event, name, None)
        if core_id is not None:
            changes[name] = public_request_id(core_id)
    if isinstance(event, StepFailed):
        changes["request_ids"] = tuple(map(public_request_id, event.request_ids))
    elif isinstance(event, EngineStalled):
        changes["waiting"] = tuple((public_request_id(core_id), reason) for core_id, reason in event.waiting)
    return event._replace(**changes) if changes else event
