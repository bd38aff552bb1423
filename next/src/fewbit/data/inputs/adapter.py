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
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from fewbit.data.dataset import Dataset
from fewbit.data.images import IMAGE_OPTIONS, PREPROCESSING_VERSION, TEXT_SETTINGS
from fewbit.data.inputs.batch import Batch, join_rows, split_rows
from fewbit.data.inputs.items import named_values
from fewbit.data.inputs.match import INPUT_EXTRA, INPUT_LAYOUT, INPUT_NAME, InputMatch, Problem, match_inputs
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
        info: the model; text settings found next to it hold unless `options` says otherwise.
        options: `transform` (a function, or `FILE.py:FN`; a dataset that has a transform keeps its own), and the image
            and text options.
        report: takes what does not fit; `on_error` of it decides what happens then.
    """

    def __init__(self, info: ModelInfo, options: Mapping[str, Any] | None = None, *, report: DataReport | None = None):
        self.info = info
        self._explicit = {name: value for name, value in (options or {}).items() if value is not None}
        found = {name: info.preprocessing[name] for name in TEXT_SETTINGS if name in info.preprocessing}
        self.options: dict[str, Any] = found | self._explicit
        self.report = report if report is not None else DataReport(on_error=self.options.get("on_error"))
        self.dropped: list[Location] = []
        self._noted: set[tuple[str, str]] = set()
        self._kind: str | None = None

    def first(self, dataset: Dataset) -> None:
        """Check the first samples, before anything heavy.

        Raises:
            DataError: the first sample does not fit, with every reason, or there is none.
        """
        few = np.array([dataset.position(index) for index in islice(dataset.indices(), FIRST)], np.int64)
        if not len(few):
            raise DataError("the dataset is empty", code="data-empty", where=dataset.report.source, hint="add samples")
        # On the side: what is found here will be found and counted again when all samples are read.
        probe = InputAdapter(self.info, self._explicit, report=DataReport(on_error=self.report.on_error))
        probe.options["pack"] = "pad"  # a few texts would not fill a packed sequence
        report = DataReport(on_error=dataset.report.on_error)
        try:
            checked = probe.prepare(Dataset.of(dataset.source, report, order=few, transform=dataset.transform))
        except DataError as error:
            if error.code != "no-text":  # the first rows of a corpus are often empty
                raise
            return
        for index, sample in checked.intact():
            probe.rows(sample, checked, index)
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
        waiting: list[Batch] = []
        for index, sample in dataset.intact():
            rows, alone = self.rows(sample, dataset, index)
            if alone and waiting:
                yield join_rows(waiting, self.info)
                waiting = []
            for row in rows:
                waiting.append(row)
                if alone or len(waiting) == size:
                    yield row if alone else join_rows(waiting, self.info)
                    waiting = []
        if waiting and self.fixed_batch not in (None, len(waiting)):
            text = f"the last {plural(len(waiting), 'sample')} do not fill a batch of {self.fixed_batch}"
            self._report(Problem(BATCH_INCOMPLETE, text, "batch"), waiting[0].locations[0])
            self.dropped += [row.locations[0] for row in waiting]
        elif waiting:
            yield join_rows(waiting, self.info)

    @property
    def fixed_batch(self) -> int | None:
        """The only batch size the model takes; `None` if any will do."""
        sizes = {t.shape[t.batch_axis] for t in self.info.inputs if t.shape and t.batch_axis is not None}
        fixed = [size for size in sizes if isinstance(size, int)]
        return fixed[0] if len(fixed) == len(sizes) == 1 else None

    def describe(self) -> str:
        """One line for the start screen: what happens to samples, and where that was found."""
        if self._kind == "images":
            return self.preprocessing.describe()
        if self._kind == "text":
            facts = self.report.facts.get("text") or {}
            length = facts.get("max_length", self.options.get("max_length", 512))
            length = min(length, self.info.facts.get("max_positions") or length)
            return f"text, at most {plural(length, 'token')} ({self._text_source()})"
        if (transform := self.options.get("transform")) is not None:
            name = transform if isinstance(transform, str) else getattr(transform, "__name__", "function")
            return f"transform {name}"
        return f"arrays by name: {', '.join(tensor.name for tensor in self.info.inputs if tensor.required)}"

    def _text_source(self) -> str:
        if any(name in self._explicit for name in TEXT_SETTINGS):
            return "options"
        found = any(name in self.options for name in TEXT_SETTINGS)
        return self.info.preprocessing_source or "model" if found else "defaults"

    def record(self) -> dict[str, Any]:
        """The preprocessing as plain data: for the record, and as `preprocessing.json` next to a written model."""
        record: dict[str, Any] = {
            "version": PREPROCESSING_VERSION,
            "inputs": [str(tensor) for tensor in self.info.inputs],
        }
        if self._kind == "images":
            record |= self.preprocessing.to_dict()
        record |= {name: self.options[name] for name in TEXT_SETTINGS if self.options.get(name) is not None}
        return record | ({"labels": list(self.info.labels)} if self.info.labels else {})

    @cached_property
    def preprocessing(self) -> ImagePreprocessing:
        """How images are prepared."""
        from fewbit.data.images.preprocess import resolve_preprocessing

        return resolve_preprocessing(self.options, self.info)

    def prepare(self, dataset: Dataset) -> Dataset:
        """The dataset with the user's transform, or with texts as token ids; decided by its first sample."""
        if self.options.get("transform") is not None:
            self._kind = "transform"
            return dataset if dataset.transform is not None else dataset.map(load_transform(self.options["transform"]))
        for index in islice(dataset.indices(), FIRST):
            if self._kind is not None:
                break
            try:
                self._kind = self._choose(dataset[index], dataset)
            except SampleError:
                continue  # damaged: reported when it is read
        self._kind = self._kind or "arrays"
        self._refuse_unused()
        if self._kind != "text":
            return dataset
        from fewbit.data.text.model_inputs import text_inputs

        tokens = text_inputs(dataset, self.info, self.options)
        self.report.facts.setdefault("text", dataset.report.facts.get("text"))
        return tokens

    def _refuse_unused(self) -> None:
        """Options for images or text have no effect on other samples."""
        names = (
            []
            if self._kind == "images"
            else [name for name in IMAGE_OPTIONS if self._explicit.get(name, "auto") != "auto"]
        )
        names += [name for name in ("max_length", "pack") if name in self._explicit and self._kind != "text"]
        if names:
            noun = "images" if names[0] in IMAGE_OPTIONS else "text for a tokenizer"
            subject = " and ".join(f"{{{name}}}" for name in names)
            raise UsageError(
                f"{subject} {'has' if len(names) == 1 else 'have'} no effect: the samples hold no {noun}",
                code="option-unused", param=names[0], hint=f"remove {subject}",
            )  # fmt: skip

    def _choose(self, sample: Any, dataset: Dataset) -> str:
        if not isinstance(sample, Mapping) or dataset.facts.get("batched"):
            return "arrays"
        names = {tensor.name for tensor in self.info.inputs}
        if _is_image(sample.get("image")) and ("image" not in names or self._image_tensor() is not None):
            if self.preprocessing.source == "defaults":
                text = f"nothing says how the model wants images: {self.preprocessing.describe()}"
                self._report(Problem(IMAGE_RAW, text, "image"), dataset.location(0))
            return "images"
        columns = {*_TEXT, self.options.get("text_column")} - names
        has_text = any(isinstance(sample.get(name), str | list) for name in columns if name)
        takes_tokens = "input_ids" in names or self.info.tokenizer is not None
        return "text" if has_text and takes_tokens and not names & set(sample) else "arrays"

    def _image_tensor(self) -> TensorInfo | None:
        """The input that takes images: four axes with channels; of a module its main or first input."""
        for tensor in self.info.inputs:
            shape = tensor.shape or ()
            if len(shape) == 4 and {shape[1], shape[3]} & {1, 3, None}:
                return tensor
        main = self.info.facts.get("main_input")
        unknown = [tensor for tensor in self.info.inputs if tensor.required and tensor.shape is None]
        return next((tensor for tensor in self.info.inputs if tensor.name == main), next(iter(unknown), None))

    def _batch_size(self, batch_size: int) -> int:
        fixed = self.fixed_batch
        if type(batch_size) is not int or batch_size < 1 or (fixed and batch_size not in (1, fixed)):
            expected = f"{fixed}, to which the model is fixed" if fixed else "an integer from 1 up"
            raise UsageError(
                f"batches of {batch_size!r} samples", code="batch-size", param="batch_size", expected=expected,
                hint=f"{{batch_size={fixed or 1}}}",
            )  # fmt: skip
        return fixed or batch_size

    def rows(self, sample: Any, dataset: Dataset, index: int) -> tuple[list[Batch], bool]:
        """The batches of one that a sample holds, none if it is dropped; and whether it is a complete batch itself.

        Args:
            sample: of a prepared dataset.
            dataset: it comes from.
            index: its number there.
        """
        location, batched = dataset.location(index), bool(dataset.facts.get("batched"))
        transformed = dataset.transform is not None
        match, label = InputMatch(), None
        try:
            values, label = self._values(sample, complete=batched or transformed)
            match = match_inputs(values, self.info, batched=batched, unknown_has_batch=transformed, targets=TARGETS)
            # Paths, ids and the like come with many samples; only an array that is left out is worth a word.
            silent = {name for name, value in values.items() if not hasattr(value, "shape") or self._kind == "images"}
            problems = [p for p in match.problems if p.type is not INPUT_EXTRA or p.input not in silent]
            problems += self._id_problems(match.inputs)
        except SampleError as error:
            problems = [Problem(error.issue.type, error.issue.message, "")]
        actions = [self._report(problem, location) for problem in problems]
        if "raise" in actions:
            raise self._mismatch([p for p, action in zip(problems, actions) if action == "raise"], location)
        repairable = all(
            problem.type in (INPUT_NAME, INPUT_LAYOUT) and action == "repair"
            for problem, action in zip(problems, actions)
            if problem.is_error
        )
        if "drop" in actions or not repairable:
            self.dropped.append(location)
            return [], False
        if label is not None and not isinstance(sample, Mapping):
            self._report(Problem(LABELS_LEFT_OUT, "the second of each pair is taken as labels", "labels"), location)
        unknown = transformed and any(tensor.shape is None for tensor in self.info.inputs)
        if batched or match.complete or unknown:
            return [Batch(match.inputs, (location,), (label,))], True
        return split_rows(match, location, label), False

    def _values(self, sample: Any, *, complete: bool) -> tuple[dict[str, Any], Any]:
        """Values by input name, images as the model takes them, and the label."""
        label = None
        if isinstance(sample, Mapping):
            names = {tensor.name for tensor in self.info.inputs}
            targets = {name: sample[name] for name in sample if name in TARGETS and name not in names}
            label = targets.get("label")
            if label is None and targets.keys() - {"label"} and "image" in sample:
                label = targets
            if self._kind == "images" and _is_image(sample.get("image")):
                tensor, pixels = self._image_tensor(), self.preprocessing(sample["image"])
                if tensor is None:
                    sample = {**sample, "image": pixels}
                else:
                    others = {name: value for name, value in sample.items() if name != "image" and name in names}
                    sample = others | {tensor.name: _as_dtype(pixels, tensor.dtype)}
        values, pair_label = named_values(sample, self.info, batched=complete)
        return values, pair_label if label is None else label

    def _id_problems(self, inputs: Mapping[str, Any]) -> Iterator[Problem]:
        """Token ids beyond the vocabulary."""
        size = self.info.vocabulary
        for name in _TOKEN_IDS if size is not None else ():
            array = inputs.get(name)
            if isinstance(array, np.ndarray) and array.dtype.kind in "iu" and array.size and size is not None:
                low, high = int(array.min()), int(array.max())
                if low < 0 or high >= size:
                    text = f"input {name!r}: id {low if low < 0 else high} of {plural(size, 'token')}"
                    yield Problem(ID_RANGE, text, name)

    def _report(self, problem: Problem, location: Location) -> str:
        """Report an error each time, anything else once per input; return what to do about it."""
        key = problem.type.code, problem.input
        if not problem.is_error and key in self._noted:
            return self.report.action(problem.type)
        self._noted.add(key)
        return self.report.add(problem.type, problem.message, replace(location, field=problem.input or None))

    def _mismatch(self, problems: Sequence[Problem], location: Location) -> DataError:
        first = problems[0]
        if len(problems) == 1:
            return SampleError(Issue(first.type, first.message, location))
        return DataError(
            f"the sample does not fit the model: {'; '.join(f'{p.message} [{p.type.code}]' for p in problems)}",
            code="input-mismatch", where=str(location), expected="; ".join(map(str, self.info.inputs)),
            hint="; ".join(dict.fromkeys(problem.type.hint for problem in problems)),
        )  # fmt: skip


def model_inputs(dataset: Dataset, model: Any, *, batch_size: int = 1) -> Iterator[Any]:
    """Batches of a dataset as inputs of a model: `(args, kwargs)` of tensors for PyTorch, else a dict of arrays.

    Args:
        dataset: the samples.
        model: a `ModelInfo`, or an object with `forward`.
        batch_size: samples per batch.
    """
    if not isinstance(model, ModelInfo) and not is_module(model):
        raise UsageError(
            f"the inputs of {model!r} are not known here" if isinstance(model, str) else f"a {type(model).__name__}",
            code="model-inputs", param="model", expected="a ModelInfo or a torch.nn.Module",
            hint="fewbit.backends.find_backend(path).inspect(path) gives the ModelInfo of a file",
        )  # fmt: skip
    info = model if isinstance(model, ModelInfo) else module_info(model)
    batches = InputAdapter(info, dataset.options, report=dataset.report).batches(dataset, batch_size)
    if info.takes_tensors:
        return (call_arguments(batch.inputs, info) for batch in batches)
    return (batch.inputs for batch in batches)


def load_transform(transform: Any) -> Callable[[Any], Any]:
    """A user's transform: a function, or `FILE.py:FN`."""
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


def _is_image(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 3 and value.shape[2] == 3


def _as_dtype(pixels: np.ndarray, dtype: str | None) -> np.ndarray:
    """Preprocessed pixels in the input's dtype; an integer input takes them rounded."""
    if dtype in ("uint8", "int8", "int32"):
        limits = np.iinfo(dtype)
        return np.asarray(np.clip(np.rint(pixels), limits.min, limits.max), dtype)
    return pixels.astype(dtype) if dtype in ("float16", "float64") else pixels
