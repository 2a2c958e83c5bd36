"""The ops of a mixture of experts: which experts a row takes, and what they make of it.

A row's result depends on the row alone: it takes exactly `top_k` experts whatever the others take, and their results
are added in the order of its own ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from octavo.program.ops import Gate, Op, Value, Weight

Scoring = Literal["softmax", "sigmoid", "topk_softmax"]
GroupScore = Literal["max", "top2"]


@dataclass(frozen=True, slots=True)
class Routing:
    """How a router's logits become a choice of experts and their weights.

    Experts are chosen by (score plus a bias if there is one, descending; id ascending), weighted by the score alone.
    """

    num_experts: int
    top_k: int
    scoring: Scoring
    """softmax, sigmoid: of all logits. topk_softmax: the logits choose, and the softmax of the chosen ones weighs."""
    renormalize: bool = False
    """Whether the weights of a row are divided by their sum."""
    scale: float = 1.0
    """Multiplies the weights."""
    num_groups: int = 1
    """Experts of consecutive ids form groups; only those of a row's best `top_groups` groups can be chosen."""
    top_groups: int = 1
    group_score: GroupScore = "top2"
    """What makes a group good: its best score, or the sum of its two best."""

    def problem(self) -> str | None:
        """Return what makes this routing impossible, or None."""
        if not 1 <= self.top_k <= self.num_experts:
            return f"{self.top_k} experts per row are to be chosen of {self.num_experts}"
        if self.num_groups < 1 or self.num_experts % self.num_groups:
            return f"{self.num_experts} experts are not {self.num_groups} equal groups"
        group_size = self.num_experts // self.num_groups
        if not 1 <= self.top_groups <= self.num_groups:
            return f"{self.top_groups} groups per row are to be chosen of {self.num_groups}"
        if self.top_groups * group_size < self.top_k:
            return f"{self.top_groups} groups of {group_size} experts hold fewer than the {self.top_k} to be chosen"
        if self.num_groups > 1 and self.group_score == "top2" and group_size < 2:
            return f"groups are scored by their two best experts, but {self.num_groups} groups have one each"
        return None


@dataclass(frozen=True, slots=True)
class Routes:
    """What a `Route` makes: for each row the experts it takes, and what their results are multiplied with."""

    experts: Value
    """[T, k] ids, the best first; whole numbers stored as floats."""
    weights: Value
    """[T, k]"""
    num_experts: int


@dataclass(frozen=True, slots=True)
class Route(Op):
    """Choose `top_k` experts for each row: logits = x Wᵀ in float32, then `routing`.

    inputs: x. outputs: experts [T, k], weights [T, k]. weights: W [experts, E], then a bias [experts] for the choice.

    Source: Shazeer et al. 2017, arXiv:1701.06538 sec. 2; groups and bias: DeepSeek-AI 2024, arXiv:2412.19437 sec. 2.
    """

    kind: ClassVar[str] = "route"

    routing: Routing

    @property
    def choice_bias(self) -> Weight | None:
        """The vector [experts], or None."""
        return self.weights[1] if len(self.weights) > 1 else None


@dataclass(frozen=True, slots=True)
class Moe(Op):
    """out[t] = Σ over ranks r, in order: weights[t, r] * down_e(gate(gate_up_e x[t])), e = experts[t, r] (+ add_to[t]).

    inputs: x, experts, weights, then add_to. weights: the matrices [2F, E] of all experts by id, then those [E, F].
    """

    kind: ClassVar[str] = "moe"

    gate: Gate

    @property
    def num_experts(self) -> int:
        """How many experts there are."""
        return len(self.weights) // 2

    @property
    def top_k(self) -> int:
        """How many of them a row takes."""
        return self.inputs[1].width

    @property
    def gate_up(self) -> tuple[Weight, ...]:
        """First matrix of each expert."""
        return self.weights[: self.num_experts]

    @property
    def down(self) -> tuple[Weight, ...]:
        """Second matrix of each expert."""
        return self.weights[self.num_experts :]

    @property
    def add_to(self) -> Value | None:
        """What the sum is added to, or None. The output may take its memory."""
        return self.inputs[3] if len(self.inputs) > 3 else None
