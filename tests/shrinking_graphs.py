# SPDX-License-Identifier: Apache-2.0
"""Graphs to shrink, and a reference for what is left of them that knows nothing of how they are shrunk."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from fewbit.sparsity.job import Job
from fewbit.sparsity.shrinking.graph import shrink_graph
from fewbit.sparsity.stages.shrink import Settings


def shrunk(proto, data=None, **settings):
    """The smaller model, and the facts of the record."""
    job = Job("one-shot", None, None, proto, None, data)
    small = shrink_graph(proto, Settings(**{"channels": 0.5} | settings), job)
    return small, job.record.facts["shrink"], job.record.lines


def arrays(proto):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def counts(facts):
    """Channels before and after, by the layers that make them."""
    return {",".join(group["layers"]): (group["before"], group["after"]) for group in facts["groups"]}


def left(before, after, axis=0):
    """Which places along an axis of an array are in a smaller one; the other axes have lost none, or are cut too."""
    whole = np.moveaxis(before, axis, 0)
    rows = np.moveaxis(after, axis, 0)
    size = min(whole[0].size, rows[0].size)
    found = []
    for row in rows:
        same = [place for place in range(len(whole)) if np.isin(row.ravel()[:size], whole[place].ravel()).all()]
        assert len(same) == 1
        found.append(same[0])
    return found


def without(proto, **cleared):
    """The model with numbers of its initializers at zero: `name=(axis, places)`."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for tensor in made.graph.initializer:
        if tensor.name in cleared:
            axis, places = cleared[tensor.name]
            array = np.moveaxis(numpy_helper.to_array(tensor).copy(), axis, 0)
            array[places] = 0
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(np.moveaxis(array, 0, axis)), tensor.name))
    return made


def gone(kept, count):
    return [place for place in range(count) if place not in kept]


def close(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())
