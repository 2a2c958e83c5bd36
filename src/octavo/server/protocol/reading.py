"""From a chat's body to how its output is read, and to the form that makes it readable where a call is demanded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.errors import RequestError
from octavo.server.parsers.formats import NO_PARSER, TOOL_PARSERS
from octavo.server.parsers.plan import NATIVE, ReadingPlan
from octavo.server.protocol.tool_forms import after_thought, forced_calls, or_calls
from octavo.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from octavo.sampling_params import SamplingParams
    from octavo.server.parsers.formats import OutputFormat
    from octavo.server.protocol.bodies import ChatBody
    from octavo.server.protocol.tools import ToolRequest


def plan_reading(body: ChatBody, tools: ToolRequest, model: OutputFormat) -> ReadingPlan:
    """Return how the output is read.

    Raises: `RequestError` if the model may call tools, and nobody could read the calls.
    """
    if tools.choice == "auto" and model.tools is None and not model.leaves_calls:
        known = f"{', '.join(sorted(TOOL_PARSERS))}, or {NO_PARSER} to get calls as text"
        template = (
            ", and with a --chat-template that shows tools: the model's own does not" if model.hides_tools else ""
        )
        raise RequestError(
            "tools cannot be served: the form in which this model writes calls is not known. Demand a call with "
            'tool_choice "required" or a named function, or start the server with --tool-call-parser '
            f"({known}){template}.",
            parameter="tools",
        )
    is_single = tools.choice == "named" or not tools.is_parallel
    return ReadingPlan(
        model,
        tools=tools.callable,
        is_forced=tools.is_forced,
        max_calls=1 if is_single else None,
        shows_reasoning=body.include_reasoning is not False,
        continues=bool(body.continue_final_message),
    )


def wanted_form(
    body: ChatBody, tools: ToolRequest, model: OutputFormat, asked: StructuredOutputsParams | None
) -> StructuredOutputsParams | None:
    """Return the form of the answer, calls included.

    Args:
        asked: by the body, for its text.

    Raises: `RequestError` if the body demands both a form and a call.
    """
    is_parallel = tools.is_parallel and tools.choice != "named"
    if tools.is_forced:
        if body.structured_outputs:
            rule = "structured_outputs and a tool_choice that demands a call exclude each other"
            raise RequestError(rule + ".", parameter="structured_outputs")
        return forced_calls(tools.callable, form=model.tools, is_parallel=is_parallel)
    if asked is not None and tools.choice == "auto" and not body.structured_outputs and model.tools == NATIVE:
        return or_calls(asked, tools.callable, is_parallel=is_parallel)
    return asked


def prepared_params(params: SamplingParams, plan: ReadingPlan, prompt: str) -> SamplingParams:
    """Return the parameters for a prompt: a form begins where the thought has ended, and marks are text.

    Args:
        prompt: as it was rendered.
    """
    state = plan.thought_state(prompt)
    form = params.structured_outputs
    shows_marks = plan.model.has_special_marks and (plan.tools or state is not None)
    if not shows_marks and (state is None or form is None):
        return params
    own = params.clone()
    if shows_marks:
        own.skip_special_tokens = False
    if state is not None and isinstance(form, StructuredOutputsParams):
        own.structured_outputs = after_thought(form, is_open=state == "open")
    return own
