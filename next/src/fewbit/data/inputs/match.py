# SPDX-License-Identifier: Apache-2.0
"""Whether a sample fits a model: names, shapes, batch axis, layout and dtypes, every problem at once.

`match_inputs` compares descriptions only, so it is cheap, and thousands of samples alike are compared once. Its `Step`s
then turn arrays into inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fewbit.data.inputs.casts import DTYPE_NARROWED, DTYPE_REFUSED, Cast, apply_cast, is_float, plan_cast
from fewbit.data.inputs.names import LABELS, NameMatch, match_names
from fewbit.data.types import IssueType, Severity
from fewbit.model_info import Dim, ModelInfo, TensorInfo

_TRANSFORM = "{transform=FILE.py:FN} maps a sample to the model's inputs"
INPUT_MISSING = IssueType(
    "input-missing", Severity.ERROR, "input of the model that the sample does not have",
    f"save an array under that name; {_TRANSFORM}", "raise", ("drop",),
)  # fmt: skip
INPUT_NAME = IssueType(
    "input-name", Severity.ERROR, "array whose name only resembles that of an input",
    "rename the array, or {on_error=input-name=repair}", "raise", ("repair", "drop"),
)  # fmt: skip
INPUT_RENAMED = IssueType(
    "input-renamed", Severity.WARNING, "array taken for an input because its shape and dtype fit no other",
    "save it under the input's name", "repair",
)  # fmt: skip
INPUT_EXTRA = IssueType(
    "input-extra", Severity.WARNING, "array that is no input of the model, left out",
    "remove the array", "keep",
)  # fmt: skip
RENAME_UNKNOWN = IssueType(
    "rename-unknown", Severity.ERROR, "rename that cannot be followed", "map names of arrays to names of inputs",
    "raise", ("drop",),
)  # fmt: skip
BATCH_DIMENSION = IssueType(
    "batch-dimension", Severity.NOTE, "sample with a batch axis",
    "nothing, if each entry is a separate sample", "repair",
)  # fmt: skip
BATCH_MIXED = IssueType(
    "batch-mixed", Severity.ERROR, "inputs of one sample that disagree about the batch axis",
    f"save every array in the complete shape of its input, or each without the batch axis; {_TRANSFORM}", "raise",
    ("drop",),
)  # fmt: skip
BATCH_MISSING = IssueType(
    "batch-missing", Severity.ERROR, "batch without a batch axis",
    "DataLoader(..., batch_size=1), or array[None]", "raise", ("drop",),
)  # fmt: skip
BATCH_FIXED = IssueType(
    "batch-fixed", Severity.ERROR, "batch of another size than the model is fixed to",
    "set the loader's batch_size to the model's, or export the model with a free batch axis", "raise", ("drop",),
)  # fmt: skip
INPUT_SHAPE = IssueType(
    "input-shape", Severity.ERROR, "array of another shape than the input",
    f"resize, pad or crop the array as the model expects; {_TRANSFORM}", "raise", ("drop",),
)  # fmt: skip
INPUT_LAYOUT = IssueType(
    "input-layout", Severity.ERROR, "image with its channels on the other side (NHWC and NCHW)",
    "save array.transpose(2, 0, 1) for channels first, (1, 2, 0) for channels last, or {on_error=input-layout=repair}",
    "raise", ("repair", "drop"),
)  # fmt: skip
AXIS_INCONSISTENT = IssueType(
    "axis-inconsistent", Severity.ERROR, "axis with two sizes in one sample", "pad or crop the arrays to one length",
    "raise", ("drop",),
)  # fmt: skip
ISSUES = (
    INPUT_MISSING, INPUT_NAME, INPUT_RENAMED, INPUT_EXTRA, RENAME_UNKNOWN, BATCH_DIMENSION, BATCH_MIXED, BATCH_MISSING,
    BATCH_FIXED, INPUT_SHAPE, INPUT_LAYOUT, AXIS_INCONSISTENT,
)  # fmt: skip

_CHANNELS = (1, 3, 4)
_TO_FRONT, _TO_BACK = (2, 0, 1), (1, 2, 0)


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and dtype of an array; text is `str`, and what is no array is `object`."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that does not fit: the issue type, a message, and the input or array it concerns."""

    type: IssueType
    message: str
    input: str


@dataclass(frozen=True, slots=True)
class Step:
    """How one array becomes an input, always with a batch axis afterwards.

    Args:
        array: its name in the sample.
        name: of the input.
        squeeze: axes of size 1 to remove first.
        transpose: order of the axes of one sample, batch axis not counted.
        batch_axis: where the batch axis is in the result; `None` if the input has none.
        expand: whether the batch axis is added.
        cast: of the dtype.
    """

    array: str
    name: str
    squeeze: int = 0
    transpose: tuple[int, ...] | None = None
    batch_axis: int | None = 0
    expand: bool = False
    cast: Cast | None = None

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The array as the input takes it.

        Raises:
            ValueError: a value does not fit the input's dtype.
        """
        if self.squeeze:
            array = array.reshape(array.shape[self.squeeze :])
        if self.expand and self.batch_axis is not None:
            array = np.expand_dims(array, self.batch_axis)
        if self.transpose is not None and self.batch_axis is not None:
            axes = [axis for axis in range(array.ndim) if axis != self.batch_axis]
            order = [axes[axis] for axis in self.transpose]
            order.insert(self.batch_axis, self.batch_axis)
            array = np.ascontiguousarray(array.transpose(order))
        return array if self.cast is None else apply_cast(array, self.cast)


@dataclass(frozen=True, slots=True)
class InputMatch:
    """How a sample meets a model.

    Args:
        problems: everything worth reporting.
        steps: one per input that the sample has.
        rows: how many samples the arrays hold together.
        complete: the arrays are a complete model input; nothing is known that could be cut or joined.
    """

    problems: tuple[Problem, ...]
    steps: tuple[Step, ...]
    rows: int = 1
    complete: bool = False

    @property
    def errors(self) -> list[Problem]:
        """The problems that keep the sample from the model."""
        return [problem for problem in self.problems if problem.type.severity is Severity.ERROR]


def match_inputs(
    arrays: Mapping[str, ArraySpec],
    info: ModelInfo,
    *,
    batched: bool = False,
    unknown_has_batch: bool = False,
    rename: Mapping[str, str] | None = None,
    targets: Collection[str] = frozenset(),
) -> InputMatch:
    """Compare the arrays of a sample with the inputs of a model.

    Args:
        arrays: by name.
        info: the model; shapes include the batch axis.
        batched: the arrays must have a batch axis (what loaders yield); otherwise their rank tells.
        unknown_has_batch: whether arrays have a batch axis if the model does not know its shapes.
        rename: array name to input name.
        targets: names that are left out silently unless the model takes them.

    >>> model = ModelInfo("m", "ONNX", "onnx", inputs=(TensorInfo("x", "float32", ("batch", 3, 8, 8)),))
    >>> [problem.type.code for problem in match_inputs({"x": ArraySpec((8, 8, 3), "float64")}, model).problems]
    ['input-layout', 'dtype-narrowed']
    """
    facts = info.facts
    model = _Model(info.inputs, bool(facts.get("open_ended")), facts.get("floating"), facts.get("main_input"))
    renames = tuple((rename or {}).items())
    return _match(tuple(arrays.items()), model, batched, unknown_has_batch or batched, renames, frozenset(targets))


@dataclass(frozen=True)
class _Model:
    """What of a `ModelInfo` the comparison depends on; it can be hashed."""

    inputs: tuple[TensorInfo, ...]
    open_ended: bool
    floating: str | None
    main_input: str | None


@lru_cache(maxsize=4096)
def _match(
    layout: tuple[tuple[str, ArraySpec], ...],
    model: _Model,
    batched: bool,
    unknown_has_batch: bool,
    rename: tuple[tuple[str, str], ...],
    targets: frozenset[str],
) -> InputMatch:
    arrays, tensors, renames = dict(layout), {tensor.name: tensor for tensor in model.inputs}, dict(rename)
    names = match_names(
        [name for name in arrays if name in tensors or name in renames or name not in targets],
        list(tensors),
        fits=lambda array, name: _could_be(arrays[array], tensors[name], batched),
        required=[tensor.name for tensor in model.inputs if tensor.required],
        rename=renames,
        open_ended=model.open_ended,
    )
    problems = _name_problems(names, arrays, tensors, model)
    pairs = {**names.pairs, **names.similar}
    if model.open_ended:
        pairs = {name: name for name in names.extra} | pairs
    order = {name: position for position, name in enumerate(tensors)}
    steps, forms = [], dict[str, _Form]()
    for array, name in sorted(pairs.items(), key=lambda pair: order.get(pair[1], len(order))):
        tensor = tensors.get(name) or TensorInfo(name)
        form = _compare_shape(arrays[array].shape, tensor, batched, unknown_has_batch)
        problems += _shape_problems(array, arrays[array], tensor, form, batched)
        dtype = tensor.dtype or (model.floating if is_float(arrays[array].dtype) else None)
        image = len(arrays[array].shape) >= (3 if batched else 2)
        cast = plan_cast(arrays[array].dtype, dtype, image=image)
        if cast is None and dtype is None and arrays[array].dtype in ("str", "object"):
            cast = Cast("float32", DTYPE_REFUSED, f"{array!r} holds no numbers")
        if cast is not None and cast.issue is not None:
            problems.append(Problem(cast.issue, f"input {name!r}: {cast.message}", name))
        forms[name] = form
        steps.append(Step(array, name, form.squeeze, form.transpose, form.batch_axis, form.expand, cast))
    problems += _axis_problems(forms, tensors)
    rows, complete, mixed = _count_rows(forms, tensors, batched)
    return InputMatch((*problems, *mixed), tuple(steps), rows, complete)


@dataclass(frozen=True, slots=True)
class _Form:
    """How the shape of an array meets that of an input; `shape` is what it becomes, `rows` its batch size."""

    shape: tuple[int, ...] | None
    issue: IssueType | None = None
    squeeze: int = 0
    transpose: tuple[int, ...] | None = None
    batch_axis: int | None = 0
    expand: bool = False
    rows: int = 1
    complete: bool = False


def _compare_shape(shape: tuple[int, ...], tensor: TensorInfo, batched: bool, unknown_has_batch: bool) -> _Form:
    if tensor.shape is None:
        rows = shape[0] if unknown_has_batch and shape else 1
        return _Form(None, expand=not unknown_has_batch, rows=rows)
    expected, axis = tensor.shape, tensor.batch_axis
    if not expected:
        if all(size == 1 for size in shape):
            return _Form((), squeeze=len(shape), batch_axis=None)
        return _Form(shape, INPUT_SHAPE, batch_axis=None)
    squeeze = 1 if len(shape) == len(expected) + 1 and shape[0] == 1 else 0
    inner = shape[squeeze:]
    if axis is None:
        issue = None if _equal(inner, expected) else INPUT_SHAPE
        return _Form(inner, issue, squeeze, batch_axis=None, complete=True)
    if len(inner) == len(expected):
        sample, rows, expand = inner[:axis] + inner[axis + 1 :], inner[axis], False
    else:
        sample, rows, expand = inner, 1, True
    expected_sample = expected[:axis] + expected[axis + 1 :]
    form = _Form(inner, None, squeeze, None, axis, expand, rows, complete=not expand)
    if expand and batched:
        missing = _equal(sample, expected_sample)
        return _replace(form, BATCH_MISSING if missing else INPUT_SHAPE)
    transpose = None if _equal(sample, expected_sample) else _layout(sample, expected_sample)
    if transpose is not None:
        sample = tuple(sample[position] for position in transpose)
        form = _replace(form, INPUT_LAYOUT, transpose)
    elif not _equal(sample, expected_sample) or not rows:
        return _replace(form, INPUT_SHAPE)
    elif batched and isinstance(expected[axis], int) and rows != expected[axis]:
        return _replace(form, BATCH_FIXED)
    full = (*sample[:axis], rows, *sample[axis:])
    return _Form(full, form.issue, squeeze, transpose, axis, expand, rows, form.complete)


def _replace(form: _Form, issue: IssueType, transpose: tuple[int, ...] | None = None) -> _Form:
    return _Form(form.shape, issue, form.squeeze, transpose, form.batch_axis, form.expand, form.rows, form.complete)


def _equal(shape: Sequence[int], expected: Sequence[Dim]) -> bool:
    """Whether every fixed axis has its size."""
    return len(shape) == len(expected) and all(
        not isinstance(dim, int) or dim == size for size, dim in zip(shape, expected)
    )


def _layout(shape: tuple[int, ...], expected: tuple[Dim, ...]) -> tuple[int, ...] | None:
    """The order of axes that moves the channels of an image to where the model has them."""
    if len(shape) != 3 or len(expected) != 3:
        return None
    for order, channels in ((_TO_FRONT, shape[2]), (_TO_BACK, shape[0])):
        if channels in _CHANNELS and _equal([shape[axis] for axis in order], expected):
            return order
    return None


def _could_be(array: ArraySpec, tensor: TensorInfo, batched: bool) -> bool:
    """Whether an array could be an input: its shape fits, and its dtype fits or only loses width."""
    if tensor.shape is None and batched:
        return False  # nothing is known of the input, so a wrong name is a wrong name
    cast = plan_cast(array.dtype, tensor.dtype)
    dtype_fits = cast is None or cast.issue in (None, DTYPE_NARROWED)
    return dtype_fits and _compare_shape(array.shape, tensor, batched, batched).issue is None


def _name_problems(
    names: NameMatch, arrays: Mapping[str, ArraySpec], tensors: Mapping[str, TensorInfo], model: _Model
) -> list[Problem]:
    problems = [Problem(RENAME_UNKNOWN, message, "rename") for message in names.wrong]
    for array in names.by_shape:
        name = names.pairs[array]
        problems.append(Problem(INPUT_RENAMED, f"array {array!r} ({arrays[array]}) is taken for input {name!r}", name))
    for array, name in names.similar.items():
        problems.append(Problem(INPUT_NAME, f"the input is called {name!r}, the array {array!r}", name))
    present = ", ".join(f"{name} ({array})" for name, array in arrays.items()) or "nothing"
    missing = [name for name in names.missing if tensors[name].required and name not in names.similar.values()]
    present_inputs = {name for name in {**names.pairs, **names.similar}.values() if name in tensors} - LABELS
    if model.main_input is not None and not present_inputs:
        missing.append(model.main_input)  # every input of a Hugging Face model is optional; one must be there
    problems += [
        Problem(INPUT_MISSING, f"no array for input {tensors[name]}; there is {present}", name) for name in missing
    ]
    extra = [] if model.open_ended else [array for array in names.extra if array not in names.similar]
    input_names = ", ".join(tensors) or "none"
    return problems + [
        Problem(INPUT_EXTRA, f"{array!r} is no input; the model has {input_names}", array) for array in extra
    ]


def _shape_problems(array: str, info: ArraySpec, tensor: TensorInfo, form: _Form, batched: bool) -> list[Problem]:
    if form.issue is None or tensor.shape is None:
        return []
    expected, note = list(tensor.shape), ""
    if not batched and tensor.batch_axis is not None and len(info.shape) < len(expected):
        del expected[tensor.batch_axis]
        note = " without the batch axis"
    axes = ", ".join("?" if dim is None else str(dim) for dim in expected)
    message = f"input {tensor.name!r} takes [{axes}]{note}, {array!r} is {list(info.shape)}"
    if form.transpose is not None:
        message += f"; {array}.transpose{form.transpose} fits"
    return [Problem(form.issue, message, tensor.name)]


def _axis_problems(forms: Mapping[str, _Form], tensors: Mapping[str, TensorInfo]) -> Iterator[Problem]:
    """Named axes, other than the batch axis, that would have two sizes at once."""
    sizes: dict[str, tuple[int, str]] = {}
    for name, form in forms.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.shape is None or form.shape is None or len(form.shape) != len(tensor.shape):
            continue
        for position, (dim, size) in enumerate(zip(tensor.shape, form.shape)):
            if isinstance(dim, str) and position != tensor.batch_axis:
                first_size, owner = sizes.setdefault(dim, (size, name))
                if first_size != size:
                    message = f"axis {dim!r} is {first_size} in {owner!r} and {size} in {name!r}"
                    yield Problem(AXIS_INCONSISTENT, message, name)


def _count_rows(
    forms: Mapping[str, _Form], tensors: Mapping[str, TensorInfo], batched: bool
) -> tuple[int, bool, list[Problem]]:
    """How many samples the arrays hold, whether they are a complete input, and whether they disagree about it."""
    declared = {name: form for name, form in forms.items() if name in tensors and tensors[name].shape}
    if any(form.issue is not None and form.issue is not INPUT_LAYOUT for form in declared.values()):
        return 1, False, []
    if any(form.batch_axis is None for form in declared.values()):
        # One input has its batch axis at an unknown place: nothing may be cut, so all must be complete.
        incomplete = [name for name, form in declared.items() if not form.complete]
        if incomplete and any(declared[name].expand for name in incomplete):
            takes = "; ".join(str(tensors[name]) for name in declared)
            message = (
                f"{', '.join(incomplete)} without a batch axis, and the batch axis of the model is not known ({takes})"
            )
            return 1, True, [Problem(BATCH_MIXED, message, "batch")]
        return 1, True, []
    sizes = {form.rows for form in declared.values()}
    with_axis, without = [f for f in declared.values() if not f.expand], [f for f in declared.values() if f.expand]
    if len(sizes) > 1 or (without and with_axis and sizes != {1}):
        leading = {tensors[name].shape[:1] for name in declared}  # type: ignore[index]
        if not without and len(leading) > 1:
            return 1, True, []  # the model itself declares different first axes
        text = ", ".join(f"{name} {form.rows if not form.expand else 'none'}" for name, form in declared.items())
        return 1, batched, [Problem(BATCH_MIXED, f"batch sizes differ: {text}", "batch")]
    rows = sizes.pop() if sizes else max((form.rows for form in forms.values()), default=1)
    problems = []
    if not batched and rows > 1 and with_axis:
        problems = [Problem(BATCH_DIMENSION, f"the batch axis holds {rows} samples", "batch")]
    return rows, False, problems


def describe_value(value: Any) -> ArraySpec:
    """Shape and dtype of an array, a tensor, a number or a text."""
    if isinstance(value, str | bytes):
        return ArraySpec((), "str" if isinstance(value, str) else "bytes")
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        dtype = str(getattr(value.dtype, "name", None) or value.dtype).removeprefix("torch.")
        dtype = "str" if dtype.startswith("str") else "bytes" if dtype.startswith("bytes") else dtype
        return ArraySpec(tuple(int(size) for size in value.shape), dtype)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError):
        return ArraySpec((), "object")
    return ArraySpec(array.shape, "object") if array.dtype.kind == "O" else describe_value(array)
