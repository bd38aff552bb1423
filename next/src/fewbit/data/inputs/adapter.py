# SPDX-License-Identifier: Apache-2.0
"""From samples to batches of model inputs, chosen automatically: transform, image preprocessing, text, arrays by name.

adapter = InputAdapter(info, options)
adapter.first(dataset)                       # the first samples, before anything heavy
for batch in adapter.batches(dataset, 8):    # batch.inputs, batch.locations, batch.labels
    session.run(batch.inputs)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fewbit.data.dataset import Dataset
from fewbit.data.inputs.batch import Batch, Row, join_rows, split_rows
from fewbit.data.inputs.casts import DTYPE_REFUSED
from fewbit.data.inputs.items import named_values, to_array
from fewbit.data.inputs.match import (
    INPUT_EXTRA,
    INPUT_LAYOUT,
    INPUT_NAME,
    InputMatch,
    Problem,
    describe_value,
    match_inputs,
)
from fewbit.data.inputs.modules import call_arguments, is_module, module_info
from fewbit.data.inputs.names import TARGETS
from fewbit.data.types import DataReport, Issue, IssueType, Location, SampleError, Severity
from fewbit.errors import DataError, UsageError, plural
from fewbit.model_info import ModelInfo, TensorInfo

if TYPE_CHECKING:
    from fewbit.data.images.preprocess import ImagePreprocessing

FIRST = 3
"""Samples that `first` looks at."""
ID_RANGE = IssueType(
    "id-range", Severity.ERROR, "token id beyond the vocabulary", "use the tokenizer that belongs to the model",
    "raise", ("drop",),
)  # fmt: skip
IMAGE_RAW = IssueType(
    "image-raw", Severity.WARNING, "images without known preprocessing",
    "{image_size=224} with {mean} and {std}, or {preprocess=imagenet}",
)  # fmt: skip
BATCH_INCOMPLETE = IssueType(
    "batch-incomplete", Severity.NOTE, "samples that do not fill the last batch of a model with a fixed batch size",
    "export the model with a free batch axis",
)  # fmt: skip
LABELS_LEFT_OUT = IssueType("labels-left-out", Severity.NOTE, "labels, which are no model input", "nothing")
ISSUES = (ID_RANGE, IMAGE_RAW, BATCH_INCOMPLETE, LABELS_LEFT_OUT)

_TOKEN_IDS = ("input_ids", "decoder_input_ids", "token_ids", "tokens", "ids")
_TEXT = ("text", "messages", "prompt", "question", "chosen", "conversations", "instruction")


class InputAdapter:
    """Turns samples into the inputs of one model.

    Args:
        info: the model.
        options: `transform` (a function, or `FILE.py:FN`; a dataset that has a transform keeps its own), `rename`, and
            the image and text options.
        report: takes what does not fit; `on_error` of it decides what happens then.
    """

    def __init__(self, info: ModelInfo, options: Mapping[str, Any] | None = None, *, report: DataReport | None = None):
        self.info, self.options = info, dict(options or {})
        self.report = report if report is not None else DataReport(on_error=self.options.get("on_error"))
        self.dropped: list[Location] = []
        self._noted: set[tuple[str, str]] = set()
        self._kind: str | None = None

    def first(self, dataset: Dataset) -> None:
        """Check the first samples, before anything heavy.

        Raises:
            DataError: the first sample does not fit, with every reason, or there is none.
        """
        if not len(dataset):
            raise DataError("the dataset is empty", code="data-empty", where=dataset.report.source, hint="add samples")
        # On the side: what is found here will be found and counted again when all samples are read.
        few = np.array([dataset.position(index) for index in range(min(FIRST, len(dataset)))])
        options = self.options | {"pack": "pad"}  # a few texts would not fill a packed sequence
        probe = InputAdapter(self.info, options, report=DataReport(on_error=self.report.on_error))
        report = DataReport(on_error=dataset.report.on_error)
        try:
            checked = probe.prepare(Dataset.of(dataset.source, report, order=few, transform=dataset.transform))
        except DataError as error:
            if error.code != "no-text":  # the first rows of a corpus are often empty
                raise
            return
        for index, sample in _samples(checked):
            probe._rows(sample, checked.location(index), _is_batched(checked), checked.transform is not None)
        self._kind = probe._kind

    def batches(self, dataset: Dataset, batch_size: int = 1) -> Iterator[Batch]:
        """Every sample in order; batches of a loader and complete inputs pass as they are.

        Args:
            dataset: the samples.
            batch_size: samples per batch. A model with a fixed batch gets that many; samples that do not fill the last
                one are left out and recorded.

        Raises:
            UsageError: the model is fixed to another batch size.
            DataError: a sample does not fit, and `on_error` does not drop it.
        """
        size = self._batch_size(batch_size)
        dataset = self.prepare(dataset)
        batched, transformed = _is_batched(dataset), dataset.transform is not None
        waiting: list[Row] = []
        for index, sample in _samples(dataset):
            for row in self._rows(sample, dataset.location(index), batched, transformed):
                if row.alone:
                    if waiting:
                        yield join_rows(waiting, self.info)
                        waiting = []
                    yield Batch(row.inputs, (row.location,), (row.label,))
                    continue
                waiting.append(row)
                if len(waiting) == size:
                    yield join_rows(waiting, self.info)
                    waiting = []
        if waiting and self.fixed_batch not in (None, len(waiting)):
            text = f"the last {plural(len(waiting), 'sample')} do not fill a batch of {self.fixed_batch}"
            self._note(Problem(BATCH_INCOMPLETE, text, "batch"), waiting[0].location)
            self.dropped += [row.location for row in waiting]
        elif waiting:
            yield join_rows(waiting, self.info)

    def __call__(self, samples: Sequence[Any], locations: Sequence[Location]) -> dict[str, Any]:
        """One batch of samples that are at hand."""
        rows = [
            row
            for sample, location in zip(samples, locations)
            for row in self._rows(sample, location, batched=False, transformed=False)
        ]
        return rows[0].inputs if rows[0].alone else join_rows(rows, self.info).inputs

    def fits(self, dataset: Dataset, index: int) -> bool:
        """Whether one sample of a prepared dataset can be given to the model; reports why not."""
        transformed = dataset.transform is not None
        return bool(self._rows(dataset[index], dataset.location(index), _is_batched(dataset), transformed))

    @property
    def fixed_batch(self) -> int | None:
        """The only batch size the model takes; `None` if any will do."""
        sizes = {
            tensor.shape[tensor.batch_axis]
            for tensor in self.info.inputs
            if tensor.shape and tensor.batch_axis is not None
        }
        fixed = [size for size in sizes if isinstance(size, int)]
        return fixed[0] if len(fixed) == len(sizes) == 1 else None

    def describe(self) -> str:
        """One line for the start screen: what happens to samples."""
        if self._kind == "images":
            return self.preprocessing.describe()
        if self._kind == "text":
            facts = self.report.facts.get("text") or {}
            return f"text, at most {facts.get('max_length', self.options.get('max_length', 512))} tokens"
        if (transform := self.options.get("transform")) is not None:
            name = transform if isinstance(transform, str) else getattr(transform, "__name__", "function")
            return f"transform {name}"
        return f"arrays by name: {', '.join(tensor.name for tensor in self.info.inputs if tensor.required)}"

    def record(self) -> dict[str, Any]:
        """The preprocessing as plain data: for the record, and as `preprocessing.json` next to a written model."""
        record: dict[str, Any] = {"inputs": [str(tensor) for tensor in self.info.inputs]}
        if self._kind == "images":
            record = self.preprocessing.to_dict()
        elif self._kind == "text":
            record = {name: self.options[name] for name in ("max_length", "pack") if self.options.get(name) is not None}
        if self.info.labels:
            record["labels"] = list(self.info.labels)
        return record

    @cached_property
    def preprocessing(self) -> ImagePreprocessing:
        """How images are prepared."""
        from fewbit.data.images.preprocess import resolve_preprocessing

        return resolve_preprocessing(self.options, self.info)

    def prepare(self, dataset: Dataset) -> Dataset:
        """The dataset with the user's transform, or with texts as token ids; decided by its first sample."""
        if self.options.get("transform") is not None:
            self._kind = "transform"
            return dataset if dataset.transform is not None else dataset.map(self._transform())
        if self._kind is None:
            self._kind = "arrays"
            for index in range(min(FIRST, len(dataset))):
                try:
                    self._kind = self._choose(dataset[index], dataset)
                except SampleError:
                    continue  # damaged: reported when it is read
                break
        if self._kind != "text":
            return dataset
        from fewbit.data.text.model_inputs import text_inputs

        tokens = text_inputs(dataset, self.info, self.options)
        self.report.facts.setdefault("text", dataset.report.facts.get("text"))
        return tokens

    def _transform(self) -> Callable[[Any], Any]:
        transform = self.options["transform"]
        if isinstance(transform, str):
            from fewbit.data.user_code import load_function

            transform = load_function(transform, param="transform")
        if not callable(transform):
            raise UsageError(
                f"a transform of type {type(transform).__name__}", code="transform", param="transform",
                expected="a function", hint="{transform=FILE.py:FN}",
            )  # fmt: skip
        function: Callable[[Any], Any] = transform
        return function

    def _choose(self, sample: Any, dataset: Dataset) -> str:
        if not isinstance(sample, Mapping) or _is_batched(dataset):
            return "arrays"
        names = {tensor.name for tensor in self.info.inputs}
        if _is_image(sample.get("image")) and ("image" not in names or self._image_tensor() is not None):
            if self.preprocessing.source == "defaults":
                text = f"nothing says how the model wants images: {self.preprocessing.describe()}"
                self._note(Problem(IMAGE_RAW, text, "image"), dataset.location(0))
            return "images"
        columns = (*_TEXT, self.options.get("text_column"))
        has_text = any(isinstance(sample.get(name), str | list) and name not in names for name in columns if name)
        takes_tokens = "input_ids" in names or self.info.tokenizer is not None
        return "text" if has_text and takes_tokens and not names & set(sample) else "arrays"

    def _image_tensor(self) -> TensorInfo | None:
        """The input that takes images: four axes with channels; of a module its main or first input."""
        for tensor in self.info.inputs:
            if (
                tensor.shape is not None
                and len(tensor.shape) == 4
                and {tensor.shape[1], tensor.shape[3]} & {1, 3, None}
            ):
                return tensor
        named = [tensor for tensor in self.info.inputs if tensor.name == self.info.facts.get("main_input")]
        free = [tensor for tensor in self.info.inputs if tensor.required and tensor.shape is None]
        return next(iter(named + free), None)

    def _batch_size(self, batch_size: int) -> int:
        fixed = self.fixed_batch
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise UsageError(
                f"batches of {batch_size!r} samples", code="batch-size", param="batch_size",
                expected="an integer from 1 up", hint="{batch_size=1}",
            )  # fmt: skip
        if fixed is not None and batch_size not in (1, fixed):
            raise UsageError(
                f"the model takes batches of {fixed}, not of {batch_size}", code="batch-size", param="batch_size",
                expected=", ".join(map(str, self.info.inputs)),
                hint=f"{{batch_size={fixed}}}, or export the model with a free batch axis",
            )  # fmt: skip
        return fixed or batch_size

    def _rows(self, sample: Any, location: Location, batched: bool, transformed: bool) -> list[Row]:
        """The samples that one sample holds, each with a batch axis of size 1; none if it is dropped."""
        values: dict[str, Any] = {}
        arrays: dict[str, Any] = {}
        label, match = None, InputMatch((), ())
        try:
            values, label, problems, match = self._match(sample, batched, transformed)
        except SampleError as error:
            problems = [Problem(error.issue.type, error.issue.message, "")]
        if all(problem.type in (INPUT_NAME, INPUT_LAYOUT) for problem in _errors(problems)):  # can be repaired
            arrays, array_problems = self._arrays(values, match)
            problems = problems + array_problems
        actions = [self._note(problem, location) for problem in problems]
        if "raise" in actions:
            raise self._mismatch([p for p, action in zip(problems, actions) if action == "raise"], location)
        repaired = all(action == "repair" for problem, action in zip(problems, actions) if _errors([problem]))
        if "drop" in actions or not repaired:
            self.dropped.append(location)
            return []
        if label is not None and not isinstance(sample, Mapping):
            self._note(Problem(LABELS_LEFT_OUT, "the second of each pair is taken as labels", "labels"), location)
        unknown = transformed and any(tensor.shape is None for tensor in self.info.inputs)
        nested = not all(isinstance(array, np.ndarray) for array in arrays.values())
        if batched or match.complete or unknown or nested:
            return [Row(arrays, location, label, alone=True)]
        axes = {step.name: step.batch_axis for step in match.steps}
        return split_rows(Row(arrays, location, label), match.rows, axes)

    def _match(
        self, sample: Any, batched: bool, transformed: bool
    ) -> tuple[dict[str, Any], Any, list[Problem], InputMatch]:
        """Values by name, the label, every problem, and the steps to take."""
        sample, label = self._preprocessed(sample)
        values, pair_label = named_values(sample, self.info, batched=batched or transformed)
        label = pair_label if label is None else label
        match = match_inputs(
            {name: describe_value(_tensor_in(value)) for name, value in values.items()},
            self.info,
            batched=batched,
            unknown_has_batch=transformed,
            rename=self.options.get("rename"),
            targets=TARGETS,
        )
        # Paths, ids and the like come with many samples; only an array that is left out is worth a word.
        silent = {name for name, value in values.items() if not hasattr(value, "shape")}
        problems = [
            p for p in match.problems if not (p.type is INPUT_EXTRA and (p.input in silent or self._kind == "images"))
        ]
        return values, label, problems, match

    def _preprocessed(self, sample: Any) -> tuple[Any, Any]:
        """The sample with its image as the model takes it, and its label."""
        if not isinstance(sample, Mapping):
            return sample, None
        names = {tensor.name for tensor in self.info.inputs}
        label = sample.get("label") if "label" not in names else None
        if label is None:
            targets = {name: sample[name] for name in sample if name in TARGETS and name not in names}
            label = targets if targets.keys() - {"label"} and "image" in sample else None
        if self._kind != "images" or not _is_image(sample.get("image")):
            return sample, label
        tensor = self._image_tensor()
        pixels = self.preprocessing(sample["image"])
        if tensor is None:
            return {**sample, "image": pixels}, label
        others = {name: value for name, value in sample.items() if name != "image" and name in names}
        return others | {tensor.name: _as_dtype(pixels, tensor.dtype)}, label

    def _arrays(self, values: Mapping[str, Any], match: InputMatch) -> tuple[dict[str, Any], list[Problem]]:
        """The inputs, and what only their values show: casts that lose something, token ids beyond the vocabulary."""
        arrays: dict[str, Any] = {}
        problems = []
        for step in match.steps:
            value = values[step.array]
            if not _is_plain(value) and self.info.backend in ("torch", "torch_export"):
                arrays[step.name] = value  # a nested input of a module passes as it is
                continue
            try:
                arrays[step.name] = array = step.apply(to_array(value))
            except (ValueError, UnicodeError) as error:
                problems.append(Problem(DTYPE_REFUSED, f"input {step.name!r}: {error}", step.name))
                continue
            problems += self._id_problems(step.name, array)
        return arrays, problems

    def _id_problems(self, name: str, array: np.ndarray) -> Iterator[Problem]:
        size = self.info.vocabulary
        if size is None or name not in _TOKEN_IDS or array.dtype.kind not in "iu" or not array.size:
            return
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= size:
            yield Problem(ID_RANGE, f"input {name!r}: id {low if low < 0 else high} of {plural(size, 'token')}", name)

    def _note(self, problem: Problem, location: Location) -> str:
        """Report an error each time, anything else once per input; return what to do about it."""
        key = problem.type.code, problem.input
        if problem.type.severity is not Severity.ERROR and key in self._noted:
            return self.report.action(problem.type)
        self._noted.add(key)
        return self.report.add(problem.type, problem.message, replace(location, field=problem.input or None))

    def _mismatch(self, problems: list[Problem], location: Location) -> DataError:
        first = problems[0]
        if len(problems) == 1:
            return SampleError(Issue(first.type, first.message, location))
        return DataError(
            f"the sample does not fit the model: {'; '.join(f'{p.message} [{p.type.code}]' for p in problems)}",
            code="input-mismatch", where=str(location), expected="; ".join(map(str, self.info.inputs)),
            hint="; ".join(dict.fromkeys(problem.type.hint for problem in problems)),
        )  # fmt: skip


def model_inputs(dataset: Dataset, model: Any, *, batch_size: int = 1) -> Iterator[Any]:
    """Batches of a dataset as inputs of a model.

    Args:
        dataset: the samples.
        model: a `ModelInfo`, or an object with `forward`.
        batch_size: samples per batch.

    Returns:
        `(args, kwargs)` of tensors for PyTorch, a dict of arrays for other runtimes.
    """
    if isinstance(model, ModelInfo):
        info = model
    elif is_module(model):
        info = module_info(model)
    else:
        raise UsageError(
            f"the inputs of {model!r} are not known here" if isinstance(model, str) else f"a {type(model).__name__}",
            code="model-inputs", param="model", expected="a ModelInfo or a torch.nn.Module",
            hint="fewbit.backends.find_backend(path).inspect(path) gives the ModelInfo of a file",
        )  # fmt: skip
    adapter = InputAdapter(info, report=dataset.report)
    batches = adapter.batches(dataset, batch_size)
    if info.backend in ("torch", "torch_export"):
        return (call_arguments(batch.inputs, info) for batch in batches)
    return (batch.inputs for batch in batches)


def _errors(problems: Sequence[Problem]) -> list[Problem]:
    return [problem for problem in problems if problem.type.severity is Severity.ERROR]


def _samples(dataset: Dataset) -> Iterator[tuple[int, Any]]:
    """Positions and samples; damaged ones are dropped or raised, as the dataset's `on_error` says."""
    for index in range(len(dataset)):
        try:
            sample = dataset[index]
        except SampleError as error:
            if dataset.report.add(error.issue.type, error.issue.message, error.issue.location) != "drop":
                raise
            continue
        yield index, sample


def _is_batched(dataset: Dataset) -> bool:
    return bool(dataset.facts.get("batched"))


def _is_image(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 3 and value.shape[2] == 3


def _as_dtype(pixels: np.ndarray, dtype: str | None) -> np.ndarray:
    """Preprocessed pixels in the input's dtype; an integer input takes them rounded."""
    if dtype in ("uint8", "int8", "int32"):
        limits = np.iinfo(dtype)
        rounded: np.ndarray = np.clip(np.rint(pixels), limits.min, limits.max).astype(dtype)
        return rounded
    return pixels.astype(dtype) if dtype in ("float16", "float64") else pixels


def _tensor_in(value: Any) -> Any:
    """A nested input (a dict or list of tensors) is described by its first tensor."""
    while isinstance(value, Mapping | list | tuple) and len(value) and not _is_plain(value):
        value = next(iter(value.values() if isinstance(value, Mapping) else value))
    return value


def _is_plain(value: Any) -> bool:
    """Whether a value is one array, number, text, or a list of numbers."""
    if isinstance(value, Mapping):
        return False
    return not (
        isinstance(value, list | tuple) and any(hasattr(item, "shape") or isinstance(item, Mapping) for item in value)
    )
