"""What `LLM` makes of hidden states: embeddings, and how alike two texts are by these."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from octavo.errors import RequestError
from octavo.frontend.call_arguments import adds_special_tokens, as_prompts, refuse, spread
from octavo.frontend.embedding import cosine
from octavo.outputs import EmbeddingOutput, EmbeddingRequestOutput, ScoringOutput, ScoringRequestOutput
from octavo.pooling_params import PoolingParams

if TYPE_CHECKING:
    from octavo.frontend.call_arguments import OnError
    from octavo.frontend.input_processor import EngineInput, Prompt
    from octavo.frontend.llm_engine import LLMEngine
    from octavo.outputs import RequestOutput


class PoolingCalls(ABC):
    """The part of `LLM` that pools."""

    llm_engine: LLMEngine

    @abstractmethod
    def _generate(
        self,
        prompts: Sequence[Any],
        prepared: list[EngineInput | RequestError],
        priority: int | Sequence[int] | None,
        use_tqdm: bool | Callable[..., Any],
        on_error: OnError,
    ) -> list[RequestOutput]:
        """Run prepared prompts to their end; return their outputs in order."""

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        lora_request: None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        priority: int | Sequence[int] | None = None,
        on_error: OnError = "raise",
    ) -> list[EmbeddingRequestOutput]:
        """Embed all prompts; return their outputs in the order of the prompts.

        Args:
            prompts: as those of `generate`.
            pooling_params: one for all, or one for each.

        The other arguments are those of `generate`.

        Raises: `RequestError` naming the first bad prompt; `EngineDeadError`.
        """
        if lora_request is not None:
            refuse("lora_request", lora_request, "is not supported")
        listed = as_prompts(prompts)
        params = spread("pooling_params", PoolingParams() if pooling_params is None else pooling_params, len(listed))
        for entry in params:
            if not isinstance(entry, PoolingParams):
                raise TypeError(f"pooling_params must be PoolingParams or a list of them, got {type(entry).__name__}")
        special = adds_special_tokens(tokenization_kwargs)
        prepared = self.llm_engine.prepare(listed, params, add_special_tokens=special)
        return list(map(embedding_output, self._generate(listed, prepared, priority, use_tqdm, on_error)))

    def score(
        self,
        data_1: Prompt | Sequence[Prompt],
        data_2: Prompt | Sequence[Prompt],
        /,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: PoolingParams | None = None,
        lora_request: None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        chat_template: None = None,
    ) -> list[ScoringRequestOutput]:
        """Return how alike the texts of each pair are: the cosine of the angle between their embeddings.

        Args:
            data_1: one prompt, which is compared with all of `data_2`; or as many as there.

        Raises: `RequestError` for a bad prompt, or lists that make no pairs; `EngineDeadError`.
        """
        if chat_template is not None:
            refuse("chat_template", chat_template, "is not supported: embeddings are compared, no conversation is made")
        first, second = as_prompts(data_1), as_prompts(data_2)
        if len(first) not in (1, len(second)) or not second:
            rule = f"data_1 must be one prompt, or as many as data_2 ({len(second)}), which is not empty"
            raise RequestError(f"{rule}; it has {len(first)}.", parameter="data_1", value=len(first))
        outputs = self.embed(
            [*first, *second],
            use_tqdm=use_tqdm,
            pooling_params=pooling_params,
            lora_request=lora_request,
            tokenization_kwargs=tokenization_kwargs,
        )
        queries = outputs[: len(first)] * (len(second) // len(first))
        pairs = zip(queries, outputs[len(first) :], strict=True)
        return [_scoring_output(str(index), a, b) for index, (a, b) in enumerate(pairs)]


def embedding_output(output: RequestOutput) -> EmbeddingRequestOutput:
    """Return what a finished request with `PoolingParams` has made, in vLLM's shape; nothing where it has an error."""
    return EmbeddingRequestOutput(
        output.request_id,
        EmbeddingOutput(output.embedding or []),
        output.prompt_token_ids or [],
        output.num_cached_tokens or 0,
        output.finished,
        error=output.error,
    )


def _scoring_output(request_id: str, a: EmbeddingRequestOutput, b: EmbeddingRequestOutput) -> ScoringRequestOutput:
    error = a.error or b.error
    return ScoringRequestOutput(
        request_id,
        ScoringOutput(0.0 if error else cosine(a.outputs.embedding, b.outputs.embedding)),
        a.prompt_token_ids + b.prompt_token_ids,
        a.num_cached_tokens + b.num_cached_tokens,
        a.finished and b.finished,
        error=error,
    )
