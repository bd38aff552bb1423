# SPDX-License-Identifier: Apache-2.0
"""From an element of a dataset to what a model is called with, checked before the model is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fewbit import registry
from fewbit.data.arrays.description import ArrayInfo
from fewbit.data.arrays.description import describe as array_info
from fewbit.data.arrays.fit import Fit, Problem, fit
from fewbit.data.batch import stack
from fewbit.data.describe import describe
from fewbit.data.sample import Sample
from fewbit.data.signature import Signature, read_signature
from fewbit.data.source import Source
from fewbit.data.tree import flatten, is_tensor
from fewbit.errors import DataError


class Feeder:
    """Turns the elements of one source into the inputs of one model.

    Args:
        source: where the elements come from; says whether they have a batch axis and which names are answers.
        model: anything `read_signature` reads.
    """

    def __init__(self, source: Source, model: Any):
        self._source = source
        self.signature: Signature = read_signature(model)
        self._framework = registry.get("signatures", self.signature.framework)
        self._fits: dict[tuple[tuple[str, ArrayInfo], ...], Fit] = {}

    def fit(self, element: Any, index: int = 0) -> Fit:
        """How an element meets the model; elements that look alike share one answer."""
        found = {name: _info(value) for name, value in self._named(element, index).items()}
        key = tuple(found.items())
        if key not in self._fits:
            batched, targets = self._source.batched, self._source.targets
            meets = fit(found, self.signature, batched=batched, targets=targets)
            self._fits[key] = meets if batched else _with_texts(meets, found, self.signature)
        return self._fits[key]

    def validate(self, element: Any, index: int = 0) -> None:
        """Raise for an element that the model cannot take, with every reason at once."""
        errors = self.fit(element, index).errors
        if not errors:
            return
        place = element.place if isinstance(element, Sample) else self._source.place(index)
        raise DataError(
            f"sample {index} does not fit the model: " + "; ".join(f"{p.message} [{p.code}]" for p in errors),
            code="sample-misfit",
            where=f"sample {index} ({place})" if place.path else f"sample {index}",
            expected="; ".join(str(spec) for spec in self.signature.inputs),
            try_="; ".join(dict.fromkeys(problem.fix for problem in errors)),
        )

    def feed(self, elements: Iterator[Any], batch_size: int) -> Iterator[Any]:
        """Native inputs, one a batch: items as they are, samples stacked. Each is held against the model first."""
        if self._source.batched:
            for index, item in enumerate(elements):
                self.validate(item, index)
                yield self._native(item, index)
            return
        waiting: list[dict[str, Any]] = []
        first = 0
        for index, element in enumerate(elements):
            for row in self._rows(element, index):
                waiting.append(row)
                if len(waiting) == batch_size:
                    yield self._framework.feed(stack(waiting, first), self.signature)
                    waiting, first = [], index + 1
        if waiting:
            yield self._framework.feed(stack(waiting, first), self.signature)

    def _rows(self, element: Any, index: int) -> Iterator[dict[str, Any]]:
        self.validate(element, index)
        meets = self.fit(element, index)
        arrays = {name: _array(value) for name, value in self._named(element, index).items()}
        for row in range(meets.rows):
            yield meets.apply(arrays, row)

    def _native(self, item: Any, index: int) -> Any:
        try:
            return self._framework.feed_item(self._without_labels(item), self.signature)
        except DataError as error:
            where = f"sample {index} ({self._source.place(index)})"
            raise DataError(
                error.what, code=error.code, where=where, expected=error.expected, try_=error.try_
            ) from error

    def _named(self, element: Any, index: int) -> dict[str, Any]:
        """The arrays of an element under the model's input names."""
        if self._source.batched:
            native = self._native(element, index)
            args, kwargs = native if isinstance(native, tuple) else ((), native)
            values = {**{self._input(i): value for i, value in enumerate(args)}, **kwargs}
            return {name: _representative(value) for name, value in values.items() if value is not None}
        element = self._without_labels(element)
        if isinstance(element, Mapping):
            return dict(element)
        if isinstance(element, list | tuple):
            return {self._input(place): value for place, value in enumerate(element)}
        return {self._input(0): element}

    def _without_labels(self, element: Any) -> Any:
        """`(x, y)` as `x` where the model has no place for `y`; the record says so."""
        if not self._framework.drops_labels(element, self.signature):
            return element
        if not any(line["what"] == "labels-left-out" for line in self._source.record.lines):
            reason = f"the model takes {', '.join(self.signature.names)}; {describe(element[1])} is left out as labels"
            self._source.record.note("labels-left-out", reason)
        return element[0]

    def _input(self, place: int) -> str:
        names = self.signature.names
        return names[place] if place < len(names) else f"input_{place}"


def _representative(value: Any) -> Any:
    """A nested input (a dict of tensors, a cache) stands for itself by its first tensor."""
    return next((leaf for _, leaf in flatten(value) if is_tensor(leaf)), value)


def _info(value: Any) -> ArrayInfo:
    try:
        return array_info(value)
    except (ValueError, TypeError, OverflowError):  # ragged lists and objects: nothing a model takes
        return ArrayInfo((), "object")


def _with_texts(meets: Fit, found: Mapping[str, ArrayInfo], signature: Signature) -> Fit:
    """The same, with a problem for each text on its way into a model that takes none.

    A model with `**kwargs` takes any name, so names alone would let a raw text through.
    """
    takes_text = {spec.name for spec in signature.inputs if spec.dtype == "str"}
    texts = [step for step in meets.steps if found[step.key].dtype in ("str", "object") and step.name not in takes_text]
    told = {problem.input for problem in meets.errors}
    more = [
        Problem("dtype-refused", f"{step.key!r} is no array of numbers", step.name, "tokenize it in a transform_fn")
        for step in texts
        if step.name not in told
    ]
    return replace(meets, problems=(*meets.problems, *more)) if more else meets


def _array(value: Any) -> Any:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        return value.float().numpy() if str(value.dtype) == "torch.bfloat16" else value.numpy()
    return np.asarray(value)
