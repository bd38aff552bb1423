# SPDX-License-Identifier: Apache-2.0
"""Arrays beside the inputs of a model: names, shapes, axes and dtypes, every problem at once."""

from __future__ import annotations

from collections.abc import Mapping

from fewbit.data.arrays.casts import is_float, plan_cast
from fewbit.data.arrays.description import ArrayInfo
from fewbit.data.arrays.fit_codes import FIT_CODES
from fewbit.data.arrays.fitted import Fit, Problem, Step
from fewbit.data.arrays.input_names import Matching, match_names
from fewbit.data.arrays.shapes import Axes, ShapeVerdict, judge_item, judge_sample, sample_axes
from fewbit.data.signature import InputSpec, Signature


def compare(
    layout: tuple[tuple[str, ArrayInfo], ...],
    signature: Signature,
    batched: bool,
    moved: tuple[tuple[str, str], ...],
    targets: frozenset[str],
) -> Fit:
    """Compare a sample's arrays with a model's inputs, all of them with the batch axis or all without.

    Args:
        layout: the arrays by name.
        signature: the model's inputs, batch axis included.
        batched: the arrays carry the batch axis.
        moved: array name to input name, where they differ.
        targets: names of answers.
    """
    specs = {spec.name: spec for spec in signature.inputs}
    found, rename = dict(layout), dict(moved)
    matching = match_names(
        [key for key in found if key in specs or key in rename or key not in targets],
        list(specs),
        rename=rename,
        alike=lambda key, name: _alike(found[key], specs[name], batched),
        required=[spec.name for spec in signature.inputs if spec.required],
        open_ended=signature.open_ended,
    )
    problems = _name_problems(matching, found, specs, signature)
    pairs = {**matching.pairs, **matching.suggestions}
    if signature.open_ended:
        pairs = {key: key for key in matching.extra} | pairs
    order = {name: place for place, name in enumerate(specs)}
    steps = []
    for key, name in sorted(pairs.items(), key=lambda pair: order.get(pair[1], len(order))):
        spec = specs.get(name) or InputSpec(name)
        verdict = _judge(found[key], spec, batched)
        wanted = spec.dtype or (signature.floating if is_float(found[key].dtype) else None)
        cast = plan_cast(found[key].dtype, wanted, image=_image_like(found[key], batched))
        problems += _shape_problem(key, found[key], spec, verdict, batched)
        if cast is not None and cast.code is not None:
            problems.append(problem(cast.code, f"input {name!r}: {cast.reason}", name))
        steps.append(Step(key, name, verdict.rows, verdict.transpose, cast))
    problems += _axis_problems(found, steps, specs, batched)
    rows, mixed = _rows([step for step in steps if step.name in specs and specs[step.name].shape is not None])
    return Fit(tuple(problems + mixed), tuple(steps), rows)


def problem(code: str, message: str, name: str, fix: str | None = None) -> Problem:
    return Problem(code, message, name, fix or FIT_CODES[code].fix)


def _judge(info: ArrayInfo, spec: InputSpec, batched: bool) -> ShapeVerdict:
    if spec.shape is None:
        return ShapeVerdict()
    return judge_item(info.shape, spec.shape) if batched else judge_sample(info.shape, spec.shape)


def _alike(info: ArrayInfo, spec: InputSpec, batched: bool) -> bool:
    """Whether an array could be an input: its shape fits, its dtype fits or widens without a word."""
    cast = plan_cast(info.dtype, spec.dtype)
    dtype_fits = cast is None or cast.code in (None, "dtype-narrowed")
    return dtype_fits and _judge(info, spec, batched).code in (None, "batch-dimension")


def _image_like(info: ArrayInfo, batched: bool) -> bool:
    return len(info.shape) >= (3 if batched else 2)


def _name_problems(
    matching: Matching, found: Mapping[str, ArrayInfo], specs: Mapping[str, InputSpec], signature: Signature
) -> list[Problem]:
    problems = [problem("rename-unknown", sentence, "rename") for sentence in matching.wrong]
    for key in matching.by_looks:
        name = matching.pairs[key]
        message = f"array {key!r} ({found[key]}) is taken for the input {name!r}: no other fits"
        fix = f"save it as {name!r}, or confirm with rename={{{key!r}: {name!r}}}"
        problems.append(problem("input-renamed", message, name, fix))
    for key, name in matching.suggestions.items():
        message = f"the model's input is called {name!r}, the array {key!r}"
        fix = f"rename={{{key!r}: {name!r}}}, or `--fix` for a renamed copy"
        problems.append(problem("input-name", message, name, fix))
    there = ", ".join(f"{key} ({info})" for key, info in found.items()) or "nothing"
    missing = [name for name in matching.missing if name not in matching.suggestions.values() and specs[name].required]
    problems += [problem("input-missing", f"input {specs[n]} has no array; there are: {there}", n) for n in missing]
    known = ", ".join(specs) or "none"
    extra = [] if signature.open_ended else [key for key in matching.extra if key not in matching.suggestions]
    return problems + [
        problem("input-extra", f"no input is called {key!r}; the model has: {known}", key) for key in extra
    ]


def _shape_problem(key: str, info: ArrayInfo, spec: InputSpec, verdict: ShapeVerdict, batched: bool) -> list[Problem]:
    if verdict.code is None or spec.shape is None:
        return []
    axes = spec.shape if batched else sample_axes(spec.shape)
    wanted = f"[{', '.join('?' if axis is None else str(axis) for axis in axes)}]"
    whose = "" if batched else " without the batch axis"
    message = f"input {spec.name!r}: expected {wanted}{whose}, found {list(info.shape)}"
    many = f"one file a sample for each of the {verdict.rows}" if verdict.rows > 1 else ""
    fix = None
    if verdict.code == "batch-dimension":
        message += f"; the first axis holds {verdict.rows} samples" if many else "; the leading 1 is a batch axis"
        fix = f"save {many}, or `--fix` for a copy that is split so" if many else f"save {key}[0]"
        fix = "DataLoader(..., batch_size=None): the items are batches already" if batched else fix
    if verdict.code == "input-layout":
        one = f"{key}[0]" if verdict.rows == 1 else f"{key}[i]" if many else key
        fix = f"{one}.transpose{verdict.transpose}: the channels stand elsewhere" + (f"; save {many}" if many else "")
    return [problem(verdict.code, message, spec.name, fix)]


def _axis_problems(
    found: Mapping[str, ArrayInfo], steps: list[Step], specs: Mapping[str, InputSpec], batched: bool
) -> list[Problem]:
    """Named axes that would have two sizes at once."""
    sizes: dict[str, tuple[int, str]] = {}
    problems = []
    for step in steps:
        spec = specs.get(step.name)
        if spec is None or spec.shape is None:
            continue
        axes: Axes = spec.shape if batched else sample_axes(spec.shape)
        shape = found[step.key].shape[1:] if step.rows else found[step.key].shape
        if step.transpose:
            shape = tuple(shape[axis] for axis in step.transpose)
        if len(shape) != len(axes):
            continue
        for axis, size in zip(axes, shape):
            if not isinstance(axis, str):
                continue
            known, owner = sizes.setdefault(axis, (size, step.name))
            if known != size:
                text = f"axis {axis!r} is {known} in {owner!r} and {size} in {step.name!r}"
                problems.append(problem("axis-inconsistent", text, step.name))
    return problems


def _rows(steps: list[Step]) -> tuple[int, list[Problem]]:
    """How many samples the arrays of known shape hold together, and whether they disagree."""
    rows = max((step.rows for step in steps), default=0)
    if rows > 1 and any(step.rows != rows for step in steps):
        text = ", ".join(f"{step.key}: {step.rows or 'none'}" for step in steps)
        return 1, [problem("batch-mixed", f"the inputs hold different numbers of samples ({text})", "batch")]
    return max(rows, 1), []
