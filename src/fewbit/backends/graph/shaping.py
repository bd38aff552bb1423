# SPDX-License-Identifier: Apache-2.0
"""Shapes and types of what flows through a graph, from one run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.adding import Adder, values_of
from fewbit.backends.graph.feeding import check_feed
from fewbit.backends.graph.sessions import session
from fewbit.errors import DataError

_LISTS = ("SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SequenceErase", "SequenceMap", "SplitToSequence",
          "Optional", "ZipMap")  # fmt: skip
_FLOATS = ("float16", "bfloat16", "float32", "float64")


class Form(NamedTuple):
    """The shape of a value, and the name of its elements' type as NumPy has it."""

    shape: tuple[int, ...]
    dtype: str


def value_shapes(model: ir.Model, item: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shape that one item gives every float value of the main graph, inputs included."""
    return {name: form.shape for name, form in value_forms(model, item).items() if form.dtype in _FLOATS}


def value_forms(model: ir.Model, item: Mapping[str, Any]) -> dict[str, Form]:
    """Shape and type of every tensor that one item makes flow through the main graph.

    Args:
        model: the model; it is not changed.
        item: arrays by input.

    Raises:
        DataError: an item that does not fit, or on which the model fails.
    """
    check_feed(model.graph, item, 0)
    copy = model.clone(deep_copy=False)
    add = Adder(copy.graph)
    asked: list[tuple[str, np.dtype[Any] | None]] = []
    outputs = []
    # Backwards, so that the runtime asks each value as soon as it is there, and can free it; see `probing`.
    for name, value in reversed(values_of(copy.graph).items()):
        producer = value.producer()
        if not isinstance(value.type, ir.TensorType | None) or (producer is not None and producer.op_type in _LISTS):
            continue
        outputs.append(add.op("Shape", [value]))
        if value.dtype is None:  # none of its elements, which still have a type
            outputs.append(add.cut(add.reshape(value, -1), 0, 0, 0))
        asked.append((name, None if value.dtype is None else value.dtype.numpy()))
    copy.graph.outputs[:] = outputs
    made = session(copy, optimize=False)
    try:
        found = iter(made.run(None, dict(item)))
    except Exception as error:  # the runtime's errors have no common class but this
        raise DataError(f"the model fails on the first item: {str(error)[:300]}", where="item 0") from error
    forms = {}
    for name, dtype in asked:
        shape = tuple(int(side) for side in next(found))
        forms[name] = Form(shape, str(next(found).dtype if dtype is None else dtype))
    return dict(reversed(forms.items()))
