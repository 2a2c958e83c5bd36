"""When a completion ends: end of text, stop token, stop string, length, in this order."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.core.request import Request
    from octavo.core.step import FinishReason

Stop = tuple["FinishReason", "int | str | None"]
"""finish_reason and stop_reason."""


def check_stop(request: Request) -> Stop | None:
    """Return why the last token of `request` ends it, or None.

    `min_tokens` holds back all but the length; the stop checker is fed every token until then and counts for itself.
    The same goes for the constraint, whose end counts before `min_tokens` too: nothing else could follow.
    Mutates: the request's stop checker and constraint.
    """
    token_id = request.token_ids[-1]
    num_output_tokens = request.num_output_tokens
    if token_id in request.ends_early and num_output_tokens >= request.params.min_tokens:
        is_eos = token_id == request.params.eos_token_id and not request.params.ignore_eos
        return ("stop", None) if is_eos else ("stop", token_id)
    if request.constraint is not None and request.constraint.append(token_id):
        return ("stop", None)
    if request.stop_checker is not None:
        matched = request.stop_checker.append(token_id)
        if matched is not None:
            return ("stop", matched)
    if num_output_tokens >= request.max_tokens:
        return ("length", None)
    return None
