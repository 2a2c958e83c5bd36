"""What the routes of one server share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.server.protocol.prompts import rendering_arguments

if TYPE_CHECKING:
    from octavo.frontend.async_engine import AsyncLLM
    from octavo.server.metrics import ServerMetrics
    from octavo.server.options import ServerOptions
    from octavo.server.protocol.calls import ProtocolContext
    from octavo.server.templates import TemplateRenderer


@dataclass(slots=True)
class ServerState:
    """The engine, and everything that is made once around it."""

    llm: AsyncLLM
    options: ServerOptions
    context: ProtocolContext
    model_templates: TemplateRenderer
    """Renders the model's own templates."""
    foreign_templates: TemplateRenderer
    """Renders those that requests bring, so that they cannot hold up the others."""
    metrics: ServerMetrics
    created: int
    """When the server started, in seconds since the epoch."""

    async def render(self, conversation: Mapping[str, Any]) -> str:
        """Return the text of a conversation, which is what `template_arguments` returns.

        Raises: `RequestError`, `QueueFullError`.
        """
        is_foreign = conversation.get("chat_template") is not None
        renderer = self.foreign_templates if is_foreign else self.model_templates
        return await renderer.render(rendering_arguments(self.llm.engine.tokenizer, conversation))
