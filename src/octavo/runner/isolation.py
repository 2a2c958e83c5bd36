"""Takes the ops of a program apart by kind, and makes programs of one kind alone, to see what each takes.

All ops of one class run one after the other, each with its own weights and layer of the cache, so that what they read
comes from where it comes from in a whole step. Products find their input quantised already, as in a whole step, where
the op before does that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from octavo.formats.gguf_types import GgufType
from octavo.native import kernels
from octavo.program.moe_ops import Moe
from octavo.program.ops import Embedding, GatherRows, Op, Program, Value, Weight, WeightPart
from octavo.weights.packing import NATIVE_FORMATS, PackedMatrix, format_name
from octavo.weights.store import WeightStore

_SOURCE_ROWS = 16
_CHOICE_ROWS = 256
"""Rows instead where experts are chosen: so many choices leave next to no expert out."""


@dataclass(frozen=True, slots=True)
class OpClass:
    """Ops that do the same work on different weights or layers."""

    kind: str
    shape: str
    """Of its matrix, or the width of its rows."""
    format: str
    """Of its matrix: as in the file; empty without one."""
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class _Source:
    """Rows to read: random numbers, or different ids of experts."""

    width: int
    num_experts: int = 0
    """0: numbers."""

    def table(self, num_rows: int) -> Weight:
        name = f"isolated.source.{self.width}" + f".of.{self.num_experts}" * (self.num_experts > 0)
        return Weight(name, (num_rows, self.width), (WeightPart(name, num_rows),))

    def rows(self, num_rows: int) -> PackedMatrix:
        rng = np.random.default_rng(0)
        if self.num_experts:
            rows = rng.permuted(np.tile(np.arange(self.num_experts, dtype=np.float32), (num_rows, 1)), axis=1)
            rows = np.ascontiguousarray(rows[:, : self.width])
        else:
            rows = rng.standard_normal((num_rows, self.width), dtype=np.float32)
        kind = NATIVE_FORMATS[GgufType.F32]
        matrix: PackedMatrix = kernels().PackedMatrix.pack(kind, [rows.view(np.uint8)], num_rows, self.width)
        return matrix


def op_classes(program: Program, weights: WeightStore) -> list[OpClass]:
    """Sort the ops of a program into classes, in order of first appearance. The gathering of logit rows is left out."""
    classes: dict[object, list[Op]] = {}
    for op in (*program.body, *program.head):
        if not isinstance(op, GatherRows):
            classes.setdefault(_signature(op, weights), []).append(op)
    return [_op_class(ops, weights) for ops in classes.values()]


def isolate(program: Program, weights: WeightStore, ops: Sequence[Op]) -> tuple[Program, WeightStore]:
    """Return a program whose body is these ops, after lookups that give them rows to read; and its weights.

    Rows choose their experts with equal chances.
    """
    values: list[Value] = []

    def new_value(width: int) -> Value:
        values.append(Value(len(values), "T", width))
        return values[-1]

    kinds = dict.fromkeys(kind for op in ops for kind in _source_kinds(op)) or {_Source(_SOURCE_ROWS): None}
    sources = {kind: new_value(kind.width) for kind in kinds}
    num_rows = _CHOICE_ROWS if any(kind.num_experts for kind in kinds) else _SOURCE_ROWS
    tables = {kind: kind.table(num_rows) for kind in kinds}
    body: list[Op] = [Embedding((), (sources[kind],), (tables[kind],), 1.0) for kind in kinds]
    chained: tuple[Value, ...] = ()
    for op in ops:
        inputs = [sources[kind] for kind in _source_kinds(op)]
        if op.in_place:  # one after the other on the same rows, so that nothing has to be copied for the next
            inputs[: len(chained)] = chained
        chained = tuple(new_value(value.width) for value in op.outputs)
        body.append(replace(op, inputs=tuple(inputs), outputs=chained))
    hidden = values[0]
    logits = Value(len(values), "N", hidden.width)
    isolated = replace(
        program,
        body=tuple(body),
        head=(GatherRows((hidden,), (logits,), ()),),
        pool=(),
        pooled=None,
        values=(*values, logits),
        hidden=hidden,
        logits=logits,
        weights=tuple({weight.name: weight for op in body for weight in op.weights}.values()),
        vocab_size=hidden.width,
        hidden_size=hidden.width,
    )
    matrices = {**weights.matrices, **{tables[kind].name: (kind.rows(num_rows),) for kind in kinds}}
    return isolated, WeightStore(matrices=matrices, vectors=weights.vectors)


def _source_kinds(op: Op) -> list[_Source]:
    """Return what each input of an op reads."""
    kinds = [_Source(value.width) for value in op.inputs]
    if isinstance(op, Moe):
        kinds[1] = _Source(op.top_k, op.num_experts)
    return kinds


def _signature(op: Op, weights: WeightStore) -> object:
    """Return what ops of one class have in common."""
    facts = tuple(
        (entry.name, str(getattr(op, entry.name)))
        for entry in fields(op)
        if entry.name not in ("inputs", "outputs", "weights", "cache", "table")
    )
    cache = getattr(op, "cache", None)
    return (
        op.kind,
        tuple(value.width for value in (*op.inputs, *op.outputs)),
        tuple(weight.shape for weight in op.weights),
        _format_name(op, weights),
        None if cache is None else cache.group,
        facts,
    )


def _op_class(ops: Sequence[Op], weights: WeightStore) -> OpClass:
    first = ops[0]
    matrices = [weight for weight in first.weights if weight.is_matrix]
    widths = [value.width for value in (*first.inputs, *first.outputs)]
    shape = "x".join(map(str, matrices[0].shape)) if matrices else str(max(widths))
    return OpClass(first.kind, shape, _format_name(first, weights), tuple(ops))


def _format_name(op: Op, weights: WeightStore) -> str:
    """Return the formats of the segments of an op's matrices."""
    segments = [segment for weight in op.weights for segment in weights.matrices.get(weight.name, ())]
    names = (format_name(segment.format) for segment in segments)
    return "+".join(dict.fromkeys(names))
