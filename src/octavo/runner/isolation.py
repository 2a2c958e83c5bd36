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
from octavo.program.ops import Embedding, GatherRows, Op, Program, Value, Weight, WeightPart
from octavo.weights.packing import NATIVE_FORMATS, PackedMatrix
from octavo.weights.store import WeightStore

_SOURCE_ROWS = 16
_FORMAT_NAMES = {number: kind.name for kind, number in NATIVE_FORMATS.items()}


@dataclass(frozen=True, slots=True)
class OpClass:
    """Ops that do the same work on different weights or layers."""

    kind: str
    shape: str
    """Of its matrix, or the width of its rows."""
    format: str
    """Of its matrix: as in the file; empty without one."""
    ops: tuple[Op, ...]


def op_classes(program: Program, weights: WeightStore) -> list[OpClass]:
    """Sort the ops of a program into classes, in order of first appearance. The gathering of logit rows is left out."""
    classes: dict[object, list[Op]] = {}
    for op in (*program.body, *program.head):
        if not isinstance(op, GatherRows):
            classes.setdefault(_signature(op, weights), []).append(op)
    return [_op_class(ops, weights) for ops in classes.values()]


def isolate(program: Program, weights: WeightStore, ops: Sequence[Op]) -> tuple[Program, WeightStore]:
    """Return a program whose body is these ops, after lookups that give them rows to read; and its weights."""
    values: list[Value] = []

    def new_value(width: int) -> Value:
        values.append(Value(len(values), "T", width))
        return values[-1]

    widths = dict.fromkeys(value.width for op in ops for value in op.inputs) or {_SOURCE_ROWS: None}
    sources = {width: new_value(width) for width in widths}
    tables = {width: _source_table(width) for width in widths}
    body: list[Op] = [Embedding((), (sources[width],), (tables[width],), 1.0) for width in widths]
    chained: tuple[Value, ...] = ()
    for op in ops:
        inputs = [sources[value.width] for value in op.inputs]
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
        values=(*values, logits),
        hidden=hidden,
        logits=logits,
        weights=tuple({weight.name: weight for op in body for weight in op.weights}.values()),
        vocab_size=hidden.width,
        hidden_size=hidden.width,
    )
    matrices = {**weights.matrices, **{table.name: (_source_rows(table),) for table in tables.values()}}
    return isolated, WeightStore(matrices=matrices, vectors=weights.vectors)


def _source_table(width: int) -> Weight:
    name = f"isolated.source.{width}"
    return Weight(name, (_SOURCE_ROWS, width), ("vocab", "hidden"), (WeightPart(name, _SOURCE_ROWS),))


def _source_rows(table: Weight) -> PackedMatrix:
    """Return random numbers, packed as they are."""
    rows = np.random.default_rng(0).standard_normal(table.shape, dtype=np.float32).view(np.uint8)
    matrix: PackedMatrix = kernels().PackedMatrix.pack(NATIVE_FORMATS[GgufType.F32], [rows], *table.shape)
    return matrix


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
    names = (_FORMAT_NAMES.get(segment.format, str(segment.format)) for segment in segments)
    return "+".join(dict.fromkeys(names))
