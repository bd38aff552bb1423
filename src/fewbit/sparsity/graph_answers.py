# SPDX-License-Identifier: Apache-2.0
"""An ONNX model that answers batches of a task as a module would."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewbit.data.signature import read_signature
from fewbit.errors import DataError
from fewbit.sparsity.batch_rows import batch_size
from fewbit.tuning.calling import ARGS

_CHANNELS = (1, 3, 4)


class GraphAnswers:
    """Runs a model in ONNX Runtime.

    Args:
        model: a `ModelProto`.
        answers: names in a batch that are not given to it.
    """

    def __init__(self, model: Any, answers: Collection[str]):
        import onnx_ir as ir

        from fewbit.backends.graph.sessions import session

        found: Any = ir.from_proto(model)
        self._session = session(found)
        self._inputs = read_signature(model).inputs
        self._kinds = {each.name: np.dtype(_KINDS.get(each.type, "f4")) for each in self._session.get_inputs()}
        self._outputs = [each.name for each in self._session.get_outputs()]
        self._answers = answers
        leading = {spec.shape[0] for spec in self._inputs if spec.shape}
        first = leading.pop() if len(leading) == 1 else None
        self._fixed = first if isinstance(first, int) and first > 0 else None

    def __call__(self, batch: Mapping[str, Any]) -> Any:
        """The one output there is, or all of them as attributes of their names, the first as `logits` too."""
        size = batch_size(batch)
        step = self._fixed or size
        named = {name: self._fitted(name, value) for name, value in self._named(batch).items()}
        runs = []
        for start in range(0, size, step):
            # A graph of a fixed size is given the last sample several times at the end of the data.
            rows = [min(row, size - 1) for row in range(start, start + step)]
            answered = self._run({name: value[rows] for name, value in named.items()})
            runs.append([torch.as_tensor(np.asarray(each)) for each in answered])
        found = [torch.cat(each)[:size] if each[0].ndim else each[0] for each in zip(*runs)]
        if len(found) == 1:
            return found[0]
        return SimpleNamespace(**({"logits": found[0]} | dict(zip(self._outputs, found))))

    def _run(self, fed: dict[str, NDArray[Any]]) -> list[Any]:
        try:
            answered: list[Any] = self._session.run(None, fed)
        except Exception as error:  # the runtime's errors have no common class but this
            shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in fed.items())
            raise DataError(f"the model does not take {shapes}: {str(error)[:200]}", code="batch") from error
        return answered

    def _named(self, batch: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        names = [spec.name for spec in self._inputs]
        given = {name: value for name, value in batch.items() if name not in self._answers}
        if ARGS in given:
            return dict(zip(names, (np.asarray(each) for each in given[ARGS])))
        there = {name: np.asarray(given[name]) for name in names if name in given}
        if there or len(names) > 1:
            return there
        first = next(value for value in given.values() if isinstance(value, Tensor))
        return {names[0]: np.asarray(first)}

    def _fitted(self, name: str, value: NDArray[Any]) -> NDArray[Any]:
        """A picture with its channels where the graph has them, in the type that it takes."""
        shape = next(spec.shape for spec in self._inputs if spec.name == name)
        if shape is not None and len(shape) == 4 and shape[3] in _CHANNELS and shape[1] not in _CHANNELS:
            value = np.moveaxis(value, 1, -1) if value.shape[1] in _CHANNELS else value
        return np.ascontiguousarray(value, self._kinds[name])


_KINDS = {
    "tensor(float)": "f4", "tensor(float16)": "f2", "tensor(double)": "f8", "tensor(int64)": "i8",
    "tensor(int32)": "i4", "tensor(uint8)": "u1", "tensor(int8)": "i1", "tensor(bool)": "?",
}  # fmt: skip
