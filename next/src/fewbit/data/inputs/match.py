# SPDX-License-Identifier: Apache-2.0
"""Whether a sample fits a model, and the sample as its inputs: names, shapes, batch axis, layout, dtypes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fewbit.data.inputs.casts import DTYPE_NARROWED, DTYPE_REFUSED, Cast, apply_cast, is_float, plan_cast
from fewbit.data.inputs.items import dtype_name, is_nested, to_array
from fewbit.data.inputs.names import LABELS, NameMatch, match_names
from fewbit.data.types import Action, IssueType, Severity
from fewbit.model_info import Dim, ModelInfo, TensorInfo

_TRANSFORM = "{transform=FILE.py:FN} maps a sample to the model's inputs"


def _error(code: str, meaning: str, hint: str, *repair: Action, aliases: tuple[str, ...] = ()) -> IssueType:
    return IssueType(code, Severity.ERROR, meaning, hint, "raise", (*repair, "drop"), aliases=aliases)


INPUT_MISSING = _error(
    "input-missing", "input of the model that the sample does not have", f"save an array under that name; {_TRANSFORM}"
)
INPUT_NAME = _error(
    "input-name", "array whose name only resembles that of an input",
    "rename the array, or {on_error=input-name=repair}", "repair", aliases=("rename-unknown",),
)  # fmt: skip
INPUT_RENAMED = IssueType(
    "input-renamed", Severity.WARNING, "array taken for an input because its shape and dtype fit no other",
    "save it under the input's name", "repair",
)  # fmt: skip
INPUT_EXTRA = IssueType("input-extra", Severity.WARNING, "array that is no input of the model", "remove the array")
INPUT_SHAPE = _error(
    "input-shape", "array of another shape than the input",
    f"resize, pad or crop the array as the model expects; {_TRANSFORM}", aliases=("axis-inconsistent",),
)  # fmt: skip
INPUT_LAYOUT = _error(
    "input-layout", "image with its channels on the other side (NHWC and NCHW)",
    "save array.transpose(2, 0, 1) for channels first, (1, 2, 0) for channels last, or {on_error=input-layout=repair}",
    "repair",
)  # fmt: skip
BATCH_DIMENSION = IssueType(
    "batch-dimension", Severity.NOTE, "sample with a batch axis", "nothing, if each entry is a separate sample",
    "repair",
)  # fmt: skip
BATCH_MIXED = _error(
    "batch-mixed", "inputs of one sample that disagree about the batch axis",
    f"save every array in the complete shape of its input, or each without the batch axis; {_TRANSFORM}",
)  # fmt: skip
BATCH_FIXED = _error(
    "batch-fixed", "batch without a batch axis, or of another size than the model is fixed to",
    "set the loader's batch_size to the model's, or export the model with a free batch axis",
    aliases=("batch-missing",),
)  # fmt: skip
ISSUES = (
    INPUT_MISSING, INPUT_NAME, INPUT_RENAMED, INPUT_EXTRA, INPUT_SHAPE, INPUT_LAYOUT, BATCH_DIMENSION, BATCH_MIXED,
    BATCH_FIXED,
)  # fmt: skip

_CHANNELS = (1, 3, 4)


class Problem(NamedTuple):
    """One thing that does not fit: the issue type, a message, and the input or array it concerns."""

    type: IssueType
    message: str
    input: str

    @property
    def is_error(self) -> bool:
        """Whether it keeps the sample from the model."""
        return self.type.severity is Severity.ERROR


@dataclass
class InputMatch:
    """A sample as the inputs of a model.

    Args:
        inputs: by name, with a batch axis; a nested input of a module as it is. Repairs (names, layout) are done.
        axes: the batch axis of each; `None` if it has none.
        problems: everything worth reporting.
        rows: how many samples the arrays hold together.
        complete: the arrays are a complete model input; nothing is known that could be cut or joined.
    """

    inputs: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, int | None] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    rows: int = 1
    complete: bool = False


def match_inputs(
    values: Mapping[str, Any],
    info: ModelInfo,
    *,
    batched: bool = False,
    unknown_has_batch: bool = False,
    targets: Collection[str] = frozenset(),
) -> InputMatch:
    """Compare the arrays of a sample with the inputs of a model, and turn them into these.

    Args:
        values: arrays, tensors, numbers or texts by name.
        info: the model; shapes include the batch axis.
        batched: the arrays must have a batch axis (what loaders yield); otherwise their rank tells.
        unknown_has_batch: whether arrays have a batch axis if the model does not know its shapes.
        targets: names that are left out silently unless the model takes them.

    >>> model = ModelInfo("m", "ONNX", "onnx", inputs=(TensorInfo("x", "float32", ("batch", 3, 8, 8)),))
    >>> [problem.type.code for problem in match_inputs({"x": np.zeros((8, 8, 3))}, model).problems]
    ['input-layout', 'dtype-narrowed']
    """
    tensors = {tensor.name: tensor for tensor in info.inputs}
    values = {name: value for name, value in values.items() if name in tensors or name not in targets}
    arrays, unreadable = _arrays(values, info)
    unknown_has_batch = unknown_has_batch or batched
    names = match_names(
        list(values),
        list(tensors),
        fits=lambda array, name: array in arrays and _could_be(values[array], arrays[array], tensors[name], batched),
        required=[tensor.name for tensor in info.inputs if tensor.required],
    )
    match = InputMatch(problems=list(_name_problems(names, values, tensors, info)))
    pairs = {name: array for array, name in (names.exact | names.by_shape | names.similar).items()}
    if info.facts.get("open_ended"):
        pairs |= {name: name for name in names.extra}
    fitted: dict[str, _Fitted] = {}
    for name in [*(name for name in tensors if name in pairs), *(name for name in pairs if name not in tensors)]:
        array, tensor = pairs[name], tensors.get(name) or TensorInfo(name)
        if array in unreadable:
            match.problems.append(Problem(DTYPE_REFUSED, f"input {name!r}: {unreadable[array]}", name))
        elif array not in arrays:
            match.inputs[name], match.complete = values[array], True
        else:
            fitted[name] = _fit(arrays[array], tensor, batched, unknown_has_batch)
            match.problems += _shape_problems(array, arrays[array].shape, tensor, fitted[name], batched)
            cast = _plan(values[array], arrays[array], tensor, info, batched)
            _store(match, name, fitted[name], cast)
    match.problems += _axis_problems(fitted, tensors)
    _count_rows(match, fitted, tensors, batched)
    return match


def _arrays(values: Mapping[str, Any], info: ModelInfo) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Arrays by name, and why others have none; nested inputs of a module are in neither."""
    arrays, unreadable = {}, {}
    for name, value in values.items():
        if is_nested(value) and info.takes_tensors:
            continue
        try:
            arrays[name] = to_array(value)
        except ValueError as error:
            unreadable[name] = str(error)
    return arrays, unreadable


class _Fitted(NamedTuple):
    """An array in the shape of its input; `expanded` if the batch axis was added, `rows` its batch size."""

    array: np.ndarray
    axis: int | None = 0
    expanded: bool = False
    rows: int = 1
    issue: IssueType | None = None
    transpose: tuple[int, ...] | None = None


def _fit(array: np.ndarray, tensor: TensorInfo, batched: bool, unknown_has_batch: bool) -> _Fitted:
    expected, axis = tensor.shape, tensor.batch_axis
    if expected is None:
        if unknown_has_batch:
            return _Fitted(array, rows=array.shape[0] if array.ndim else 1)
        return _Fitted(array[None], expanded=True)
    if not expected:
        return _Fitted(array.reshape(()), None) if array.size == 1 else _Fitted(array, None, issue=INPUT_SHAPE)
    if array.ndim == len(expected) + 1 and array.shape[0] == 1:
        array = array[0]
    if axis is None:
        return _Fitted(array, None, issue=None if _equal(array.shape, expected) else INPUT_SHAPE)
    wanted = expected[:axis] + expected[axis + 1 :]
    expanded = array.ndim != len(expected)
    if expanded and batched:
        return _Fitted(array, axis, True, issue=BATCH_FIXED if _equal(array.shape, wanted) else INPUT_SHAPE)
    if expanded and array.ndim != len(wanted):
        return _Fitted(array, axis, True, issue=INPUT_SHAPE)
    array = np.expand_dims(array, axis) if expanded else array
    rows = array.shape[axis]
    sample = array.shape[:axis] + array.shape[axis + 1 :]
    fitted = _Fitted(array, axis, expanded, rows)
    if not _equal(sample, wanted):
        transpose = _layout(sample, wanted)
        if transpose is None:
            return fitted._replace(issue=INPUT_SHAPE)
        axes = [position for position in range(array.ndim) if position != axis]
        order = [axes[position] for position in transpose]
        order.insert(axis, axis)
        return fitted._replace(array=array.transpose(order), issue=INPUT_LAYOUT, transpose=transpose)
    if batched and isinstance(expected[axis], int) and rows != expected[axis]:
        return fitted._replace(issue=BATCH_FIXED)
    return fitted if rows else fitted._replace(issue=INPUT_SHAPE)


def _equal(shape: Sequence[int], expected: Sequence[Dim]) -> bool:
    """Whether every fixed axis has its size."""
    same = all(not isinstance(dim, int) or dim == size for size, dim in zip(shape, expected))
    return same and len(shape) == len(expected)


def _layout(shape: tuple[int, ...], expected: tuple[Dim, ...]) -> tuple[int, ...] | None:
    """The order of axes that moves the channels of an image to where the model has them."""
    if len(shape) == len(expected) == 3:
        for order, channels in (((2, 0, 1), shape[2]), ((1, 2, 0), shape[0])):
            if channels in _CHANNELS and _equal([shape[axis] for axis in order], expected):
                return order
    return None


def _could_be(value: Any, array: np.ndarray, tensor: TensorInfo, batched: bool) -> bool:
    """Whether an array could be an input: its shape fits, and its dtype fits or only loses width."""
    if tensor.shape is None and batched:
        return False  # nothing is known of the input, so a wrong name is a wrong name
    cast = plan_cast(dtype_name(value, array), tensor.dtype)
    dtype_fits = cast is None or cast.issue in (None, DTYPE_NARROWED)
    return dtype_fits and _fit(array, tensor, batched, batched).issue is None


def _plan(value: Any, array: np.ndarray, tensor: TensorInfo, info: ModelInfo, batched: bool) -> Cast | None:
    dtype = dtype_name(value, array)
    target = tensor.dtype or (info.facts.get("floating") if is_float(dtype) else None)
    if target is None and dtype in ("str", "bytes"):
        return Cast("float32", DTYPE_REFUSED, "text is no array of numbers")
    return plan_cast(dtype, target, image=array.ndim >= (3 if batched else 2))


def _store(match: InputMatch, name: str, fitted: _Fitted, cast: Cast | None) -> None:
    """Cast an array and add it to the inputs."""
    array = fitted.array
    try:
        if cast is not None and cast.issue is not None:
            match.problems.append(Problem(cast.issue, f"input {name!r}: {cast.message}", name))
        if cast is not None and cast.issue is not DTYPE_REFUSED:
            array = apply_cast(array, cast)
    except (ValueError, UnicodeError) as error:
        match.problems.append(Problem(DTYPE_REFUSED, f"input {name!r}: {error}", name))
    match.inputs[name] = np.ascontiguousarray(array) if fitted.transpose else array
    match.axes[name] = fitted.axis


def _name_problems(
    names: NameMatch, values: Mapping[str, Any], tensors: Mapping[str, TensorInfo], info: ModelInfo
) -> Iterator[Problem]:
    for array, name in names.by_shape.items():
        yield Problem(INPUT_RENAMED, f"array {array!r} ({_shown(values[array])}) is taken for input {name!r}", name)
    for array, name in names.similar.items():
        yield Problem(INPUT_NAME, f"the input is called {name!r}, the array {array!r}", name)
    missing = [name for name in names.missing if tensors[name].required]
    present = {*names.exact.values(), *names.by_shape.values(), *names.similar.values()} - LABELS
    if info.facts.get("main_input") is not None and not present:
        missing.append(info.facts["main_input"])  # all inputs of a Hugging Face model are optional; one must be there
    there = ", ".join(f"{name} ({_shown(value)})" for name, value in values.items()) if missing else ""
    for name in missing:
        yield Problem(INPUT_MISSING, f"no array for input {tensors[name]}; there is {there or 'nothing'}", name)
    for array in [] if info.facts.get("open_ended") else names.extra:
        yield Problem(INPUT_EXTRA, f"{array!r} is no input; the model has {', '.join(tensors) or 'none'}", array)


def _shown(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return type(value).__name__
    return f"{str(dtype).removeprefix('torch.')} {list(value.shape)}"


def _shape_problems(
    array: str, shape: tuple[int, ...], tensor: TensorInfo, fitted: _Fitted, batched: bool
) -> Iterator[Problem]:
    if fitted.issue is None:
        return
    expected, note = list(tensor.shape or ()), ""
    if not batched and tensor.batch_axis is not None and len(shape) < len(expected):
        del expected[tensor.batch_axis]
        note = " without the batch axis"
    axes = ", ".join("?" if dim is None else str(dim) for dim in expected)
    message = f"input {tensor.name!r} takes [{axes}]{note}, {array!r} is {list(shape)}"
    if fitted.transpose is not None:
        message += f"; {array}.transpose{fitted.transpose} fits"
    yield Problem(fitted.issue, message, tensor.name)


def _axis_problems(fitted: Mapping[str, _Fitted], tensors: Mapping[str, TensorInfo]) -> Iterator[Problem]:
    """Named axes, other than the batch axis, that would have two sizes at once."""
    sizes: dict[str, tuple[int, str]] = {}
    for name, fit in fitted.items():
        expected = tensors[name].shape if name in tensors else None
        if expected is None or fit.array.ndim != len(expected):
            continue
        for axis, (dim, size) in enumerate(zip(expected, fit.array.shape)):
            if isinstance(dim, str) and axis != fit.axis:
                first, owner = sizes.setdefault(dim, (size, name))
                if first != size:
                    message = f"axis {dim!r} is {first} in {owner!r} and {size} in {name!r}"
                    yield Problem(INPUT_SHAPE, message, name)


def _count_rows(
    match: InputMatch, fitted: Mapping[str, _Fitted], tensors: Mapping[str, TensorInfo], batched: bool
) -> None:
    """How many samples the arrays hold, whether they are a complete input, and whether they disagree about it."""
    declared = {name: fit for name, fit in fitted.items() if name in tensors and tensors[name].shape}
    if any(fit.issue not in (None, INPUT_LAYOUT) for fit in declared.values()):
        return
    expanded = [name for name, fit in declared.items() if fit.expanded]
    sizes = {fit.rows for fit in declared.values()}
    if any(fit.axis is None for fit in declared.values()):
        # One input has its batch axis at an unknown place: nothing may be cut, so all must be complete.
        match.complete = True
        if expanded:
            takes = "; ".join(str(tensors[name]) for name in declared)
            message = f"{', '.join(expanded)} without a batch axis, and that of the model is not known ({takes})"
            match.problems.append(Problem(BATCH_MIXED, message, "batch"))
    elif len(sizes) > 1 or (0 < len(expanded) < len(declared) and sizes != {1}):
        leading = {(tensors[name].shape or ())[0] for name in declared}
        match.complete = batched or (not expanded and len(leading) > 1)
        if expanded or len(leading) == 1:  # otherwise the model itself declares different first axes
            text = ", ".join(f"{name} {'none' if fit.expanded else fit.rows}" for name, fit in declared.items())
            match.problems.append(Problem(BATCH_MIXED, f"batch sizes differ: {text}", "batch"))
    else:
        match.rows = sizes.pop() if sizes else max((fit.rows for fit in fitted.values()), default=1)
        if not batched and match.rows > 1 and len(expanded) < len(declared):
            message = f"the batch axis holds {match.rows} samples"
            match.problems.append(Problem(BATCH_DIMENSION, message, "batch"))
