# SPDX-License-Identifier: Apache-2.0
"""Whether a sample fits a model: from descriptions alone, every problem at once, and the steps that make it fit.

`fit` compares what is there with what the model takes and returns a plan. The plan can be read before anything
is loaded, costs nothing to keep for thousands of samples alike, and `apply` carries it out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache

from fewbit.data.arrays.comparison import compare, problem
from fewbit.data.arrays.description import ArrayInfo
from fewbit.data.arrays.fit_codes import FIT_CODES
from fewbit.data.arrays.fitted import Fit, Problem
from fewbit.data.arrays.leading_axis import is_elsewhere, may_differ, takes_whole
from fewbit.data.signature import Signature


def fit(
    found: Mapping[str, ArrayInfo],
    signature: Signature,
    *,
    batched: bool,
    rename: Mapping[str, str] | None = None,
    targets: Collection[str] = frozenset(),
) -> Fit:
    """Compare a sample's arrays with a model's inputs.

    Args:
        found: the arrays by name.
        signature: the model's inputs, batch axis included.
        batched: the arrays carry the batch axis (items); otherwise they are one sample without it, or, where a model's
            inputs do not all begin with the batch axis, one with the whole shape of every input.
        rename: array name to input name, where they differ.
        targets: names of answers, which are left out without a word unless the model takes them.

    >>> from fewbit.data.signature import InputSpec
    >>> model = Signature("onnx", (InputSpec("x", ("batch", 3, 8, 8), "float32"),))
    >>> result = fit({"x": ArrayInfo((8, 8, 3), "float64")}, model, batched=False)
    >>> [problem.code for problem in result.problems]
    ['input-layout', 'dtype-narrowed']
    """
    layout, moved = tuple(found.items()), tuple((rename or {}).items())
    return _fit(layout, signature, batched, moved, frozenset(targets))


@lru_cache(maxsize=4096)
def _fit(
    layout: tuple[tuple[str, ArrayInfo], ...],
    signature: Signature,
    batched: bool,
    moved: tuple[tuple[str, str], ...],
    targets: frozenset[str],
) -> Fit:
    """Thousands of samples alike are judged once."""
    told = compare(layout, signature, batched, moved, targets)
    declared = all(spec.shape is not None for spec in signature.inputs)
    if batched or not declared or not (takes_whole(signature) or (told.errors and may_differ(signature))):
        return told
    whole = replace(compare(layout, signature, True, moved, targets), whole=True)
    if not whole.errors and not any(step.rows for step in whole.steps):
        return whole
    if not is_elsewhere(signature) or _is_misnamed(told):
        return told
    ranks = {spec.name: len(spec.shape or ()) for spec in signature.inputs}
    meant_whole = all(len(dict(layout)[step.key].shape) == ranks[step.name] for step in whole.steps)
    return whole if meant_whole and whole.errors else replace(told, problems=(*told.problems, _elsewhere(signature)))


def _is_misnamed(told: Fit) -> bool:
    """Whether arrays are missing or called otherwise: until that is mended, shapes say little."""
    return any(problem.code in ("input-missing", "input-name", "rename-unknown") for problem in told.problems)


def _elsewhere(signature: Signature) -> Problem:
    """What is wrong with samples that have no batch axis, for a model that has it elsewhere."""
    takes = "; ".join(str(spec) for spec in signature.inputs)
    text = f"samples without a batch axis, and the model's inputs do not all begin with the batch axis ({takes})"
    fix = "save every array in the whole shape of its input; " + FIT_CODES["batch-mixed"].fix.partition("; or ")[2]
    return problem("batch-mixed", text, "batch", fix)
