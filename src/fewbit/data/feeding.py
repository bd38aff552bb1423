# SPDX-License-Identifier: Apache-2.0
"""From an element of a dataset to what a model is called with, checked before the model is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

from fewbit import registry
from fewbit.data.arrays.casts import is_float, plan_cast
from fewbit.data.arrays.description import ArrayInfo
from fewbit.data.arrays.description import describe as array_info
from fewbit.data.arrays.fit import fit
from fewbit.data.arrays.fit_codes import FIT_CODES
from fewbit.data.arrays.fitted import Fit, Problem
from fewbit.data.arrays.input_names import ANSWERS
from fewbit.data.arrays.tensor_to_array import to_array
from fewbit.data.batch import stack
from fewbit.data.describe import describe
from fewbit.data.fed import Fed
from fewbit.data.feeding_raw import BY_TRANSFORM, with_raw
from fewbit.data.sample import Sample
from fewbit.data.signature import Signature, read_signature
from fewbit.data.signatures._items import is_data, take_labels
from fewbit.data.source import Source
from fewbit.data.tree import flatten, is_tensor
from fewbit.errors import DataError, UsageError

_NAMED = 8
"""Of so many samples of a batch the places are named."""
_FOR_FILES = frozenset({"input-missing", "input-name", "dtype-refused"})
"""Problems whose own advice is to save other files: for anything but files of arrays it is a transform_fn."""


class Feeder:
    """Turns the elements of one source into the inputs of one model.

    What is left out or changed on the way (labels, extra arrays, a dtype) is noted in the source's record, once each.

    Args:
        source: where the elements come from; says whether they have a batch axis and which names are answers.
        model: anything `read_signature` reads.
    """

    def __init__(self, source: Source, model: Any):
        self._source = source
        self.signature: Signature = read_signature(model)
        self._framework = registry.get("signatures", self.signature.framework)
        self._noted: set[tuple[str, str | None]] = set()
        main = getattr(model, "main_input_name", None)  # of a Hugging Face model, where every input is optional
        self._main = next((s for s in self.signature.inputs if s.name == main and not s.required), None)

    def fit(self, element: Any, index: int = 0) -> Fit:
        """How an element meets the model."""
        return self._meet(self._named(self._native(element, index) if self._source.batched else element))

    def validate(self, element: Any, index: int = 0) -> Fit:
        """How an element meets the model; one that it cannot take is refused, with every reason at once."""
        return self._demand(self.fit(element, index), element, index)

    def feed(self, elements: Iterator[Any], batch_size: int, *, whole: bool = False) -> Fed:
        """Native inputs, one a batch: items as they are, samples stacked. Each is held against the model first.

        Args:
            elements: of the source.
            batch_size: how many samples a batch holds.
            whole: the samples have the whole shape of every input, as `validate` says of the first.

        Raises:
            UsageError: a batch size the model does not take.
        """
        if batch_size < 1:
            raise UsageError(f"batch_size={batch_size}", expected="1 or more")
        if self._source.batched:
            return Fed((self._place(item, i), self._item(item, i)) for i, item in enumerate(elements))
        self._refuse_batch_size(batch_size, whole)
        return Fed(self._whole(elements) if whole else self._batches(elements, batch_size))

    def _refuse_batch_size(self, batch_size: int, whole: bool) -> None:
        for spec in self.signature.inputs:
            fixed = 1 if spec.shape == () else spec.shape[0] if spec.shape else None
            if whole and batch_size not in (1, fixed) and spec.shape != ():
                raise UsageError(
                    f"batch_size={batch_size}, and every sample is a whole input of the model, such as {spec}",
                    expected="batch_size=1",
                )
            if not whole and isinstance(fixed, int) and fixed != batch_size:
                raise UsageError(
                    f"the model's input {spec} takes batches of {fixed}, not of {batch_size}",
                    try_=f"batch_size={fixed}, samples in the input's whole shape, or export the model with a dynamic "
                    "batch axis",
                )

    def _item(self, item: Any, index: int) -> Any:
        """An item as the framework takes it; what does not fit as it is, but could, is made to."""
        native = self._native(item, index)
        named = self._named(native)
        meets = self._demand(self._meet(named), item, index)
        with _at(self._place(item, index)):
            changed = {
                step.name: step.apply(to_array(named[step.key], copy=False)) for step in meets.steps if step.changes
            }
        if not changed:
            return native
        if isinstance(native, dict):
            return self._framework.feed(native | changed, self.signature)
        _, made = self._framework.feed(changed, replace(self.signature, positional=0))
        made = {name: tensor.to(named[name].device) for name, tensor in made.items()}
        args, kwargs = native
        args = tuple(made.get(self._input(place), value) for place, value in enumerate(args))
        return args, {name: made.get(name, value) for name, value in kwargs.items()}

    def _whole(self, elements: Iterator[Any]) -> Iterator[tuple[str, Any]]:
        """Samples that are inputs of the model as they are."""
        for index, element in enumerate(elements):
            meets, rows = self._rows(element, index)
            if not meets.whole:
                raise self._unlike(element, index, "the whole shape of every input", "no batch axis")
            with _at(self._place(element, index)):
                yield self._place(element, index), self._framework.feed(next(rows), self.signature)

    def _batches(self, elements: Iterator[Any], batch_size: int) -> Iterator[tuple[str, Any]]:
        waiting: list[dict[str, Any]] = []
        places: list[str] = []
        numbers: list[int] = []
        for index, element in enumerate(elements):
            meets, rows = self._rows(element, index)
            if meets.whole:
                raise self._unlike(element, index, "no batch axis", "the whole shape of every input")
            for row in rows:
                if waiting and row.keys() != waiting[0].keys():
                    one, other = ", ".join(waiting[0]), ", ".join(row)
                    raise DataError(
                        f"samples differ: {one} in sample {numbers[0]}, {other} in sample {self._source.number(index)}",
                        code="batch-ragged",
                        where=self._place(element, index),
                        expected="the same inputs in each sample of a batch",
                        try_="batch_size=1, or give every sample the same inputs",
                    )
                waiting.append(row)
                places.append(self._place(element, index))
                numbers.append(self._source.number(index))
                if len(waiting) == batch_size:
                    yield _span(places, numbers), self._stacked(waiting, numbers)
                    waiting, places, numbers = [], [], []
        if waiting and any(spec.shape and isinstance(spec.shape[0], int) for spec in self.signature.inputs):
            left = f"the last {len(waiting)} samples do not fill a batch of {batch_size}, which the model is fixed to"
            self._note("batch-incomplete", f"left out: {left}")
        elif waiting:
            yield _span(places, numbers), self._stacked(waiting, numbers)

    def _unlike(self, element: Any, index: int, others: str, this: str) -> DataError:
        return DataError(
            f"samples differ: those before have {others}, sample {self._source.number(index)} has {this}",
            code="batch-ragged",
            where=self._place(element, index),
            expected="; ".join(str(spec) for spec in self.signature.inputs),
            try_="save all of them in one way",
        )

    def _stacked(self, rows: list[dict[str, Any]], numbers: list[int]) -> Any:
        batch = stack(rows, numbers)
        for spec in self.signature.inputs:
            if spec.shape == () and spec.name in batch:
                batch[spec.name] = batch[spec.name].reshape(())  # an input without any axis has none for the batch
        return self._framework.feed(batch, self.signature)

    def _rows(self, element: Any, index: int) -> tuple[Fit, Iterator[dict[str, Any]]]:
        """How an element meets the model, and the samples it holds."""
        named = self._named(element)
        meets = self._demand(self._meet(named), element, index)
        with _at(self._place(element, index)):
            arrays = {step.key: to_array(named[step.key], name=step.name, copy=False) for step in meets.steps}
            return meets, iter([meets.apply(arrays, row) for row in range(meets.rows)])

    def _meet(self, named: Mapping[str, Any]) -> Fit:
        found = {name: _info(value) for name, value in named.items()}
        batched = self._source.batched
        meets = fit(found, self.signature, batched=batched, targets=self._source.targets | ANSWERS)
        meets = self._with_main(meets, found)
        return meets if batched else with_raw(meets, found, self.signature, self._source.facts.get("format"))

    def _with_main(self, meets: Fit, found: Mapping[str, ArrayInfo]) -> Fit:
        """The same, with a problem where nothing at all goes to an input that the model declares."""
        declared = set(self.signature.names) - ANSWERS
        if self._main is None or any(step.name in declared for step in meets.steps):
            return meets
        there = ", ".join(f"{name} ({info})" for name, info in found.items()) or "nothing"
        message = f"input {self._main} has no array; there are: {there}"
        problem = Problem("input-missing", message, self._main.name, FIT_CODES["input-missing"].fix)
        return replace(meets, problems=(*meets.problems, problem))

    def _demand(self, meets: Fit, element: Any, index: int) -> Fit:
        """The fit itself, where nothing keeps the element from being fed."""
        errors = meets.errors
        if not errors:
            for problem in meets.problems:
                self._note(problem.code, problem.message, problem.input)
            return meets
        of_files = self._source.facts.get("format") == "npz" and not self._source.batched
        tries = (p.fix if of_files or p.code not in _FOR_FILES else BY_TRANSFORM for p in errors)
        raise DataError(
            f"sample {self._source.number(index)} does not fit the model: "
            + "; ".join(f"{p.message} [{p.code}]" for p in errors),
            code="sample-misfit",
            where=self._place(element, index),
            expected="; ".join(str(spec) for spec in self.signature.inputs),
            try_="; ".join(dict.fromkeys(tries)),
        )

    def _native(self, item: Any, index: int) -> Any:
        kept = self._without_labels(item)
        with _at(self._place(item, index)):
            native = self._framework.feed_item(kept, self.signature)
        self._note_changes(kept, native)
        return native

    def _note_changes(self, item: Any, native: Any) -> None:
        """Write down what became of an item besides its form: another name, another floating dtype."""
        if isinstance(item, Mapping) and isinstance(native, dict):
            for name in native.keys() - item.keys():
                self._note("input-renamed", f"{next(iter(item))!r} is taken for {name!r}, the model's only input", name)
        if self.signature.floating is not None:
            for dtype in sorted(_floats(item) - _floats(native)):
                cast = plan_cast(dtype, self.signature.floating)
                if cast is not None and cast.code is not None:
                    self._note(cast.code, f"{cast.reason}, the dtype of the model's parameters")

    def _named(self, element: Any) -> dict[str, Any]:
        """The arrays of a sample, or of an item in the framework's own form, under the model's input names."""
        if self._source.batched:
            args, kwargs = element if isinstance(element, tuple) else ((), element)
            values = {**{self._input(i): value for i, value in enumerate(args)}, **kwargs}
            return {name: _representative(value) for name, value in values.items() if value is not None}
        element = self._without_labels(element)
        if isinstance(element, Mapping):
            return {str(name): value for name, value in element.items() if value is not None}
        if isinstance(element, list | tuple) and not is_data(element):
            return {self._input(place): value for place, value in enumerate(element)}
        return {self._input(0): element}

    def _without_labels(self, element: Any) -> Any:
        """What of an element is for the model; the record says what is not."""
        kept, labels = take_labels(element, self.signature)
        if not self._source.batched and isinstance(element, Mapping):  # a sample's answers are left to `fit`
            known = (self._source.targets | ANSWERS) - set(self.signature.names)
            kept, labels = element, {name: element[name] for name in element if name in known} or None
        if labels is not None:
            takes = ", ".join(self.signature.names)
            self._note("labels-left-out", f"the model takes {takes}; {describe(labels)} is left out as labels")
        return kept

    def _note(self, code: str, reason: str, field: str | None = None) -> None:
        if (code, field) in self._noted:
            return
        self._noted.add((code, field))
        where = None if field is None else f"input {field!r}"
        if not any(line["what"] == code and line["where"] == where for line in self._source.record.lines):
            self._source.record.note(code, reason, where=where)

    def _place(self, element: Any, index: int) -> str:
        place = element.place if isinstance(element, Sample) else self._source.place(index)
        number = self._source.number(index)
        return f"sample {number} ({place})" if place.path else f"sample {number}"

    def _input(self, place: int) -> str:
        names = self.signature.names
        return names[place] if place < len(names) else f"input_{place}"


def _span(places: list[str], numbers: list[int]) -> str:
    """Where the samples of a batch came from."""
    if all(after - before in (0, 1) for before, after in pairwise(numbers)):
        return places[0] if places[0] == places[-1] else f"{places[0]} to {places[-1]}"
    more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    return "; ".join(places[:_NAMED]) + more


@contextmanager
def _at(place: str) -> Iterator[None]:
    """Put the place of an element into an error that does not know it."""
    try:
        yield
    except DataError as error:
        raise DataError(error.what, code=error.code, where=place, expected=error.expected, try_=error.try_) from error


def _representative(value: Any) -> Any:
    """A nested input (a dict of tensors, a cache) stands for itself by its first tensor."""
    return next((leaf for _, leaf in flatten(value) if is_tensor(leaf)), value)


def _info(value: Any) -> ArrayInfo:
    try:
        return array_info(value)
    except (ValueError, TypeError, OverflowError, RuntimeError):  # ragged, nested, an object: nothing a model takes
        return ArrayInfo((), "object")


def _floats(value: Any) -> set[str]:
    dtypes = {_info(leaf).dtype for _, leaf in flatten(value) if is_tensor(leaf)}
    return {dtype for dtype in dtypes if is_float(dtype)}
