# SPDX-License-Identifier: Apache-2.0
"""Where a model has its batch axis: first in every input, as samples are put into batches, or somewhere else."""

from __future__ import annotations

from fewbit.data.arrays.shapes import Axes
from fewbit.data.signature import Signature


def takes_whole(signature: Signature) -> bool:
    """Whether arrays with an input's whole shape are that input: cutting their first axis would make other samples.

    >>> from fewbit.data.signature import InputSpec
    >>> [takes_whole(Signature("onnx", (InputSpec("x", (first, 8)),))) for first in ("n", 1, 4)]
    [False, False, True]
    """
    return is_elsewhere(signature) or any(isinstance(axis, int) and axis > 1 for axis in _leading(signature))


def is_elsewhere(signature: Signature) -> bool:
    """Whether the first axes of the inputs cannot all be the batch axis.

    They cannot where one is fixed to several and another is something else (`[batch, 576]` beside `[2, batch, 128]`),
    where two are fixed to different sizes, and where an axis further back is called so.

    >>> from fewbit.data.signature import InputSpec
    >>> is_elsewhere(Signature("onnx", (InputSpec("x", ("batch", 576)), InputSpec("state", (2, "batch", 128)))))
    True
    """
    leading = _leading(signature)
    fixed = {axis for axis in leading if isinstance(axis, int)}
    unlike = len(leading) > 1 and bool(fixed - {1})
    return unlike or any(_is_later(axes) for axes in _shapes(signature))


def fixed_batch(signature: Signature) -> int:
    """How many samples a model takes at a time, where it takes no other number; else 1.

    >>> from fewbit.data.signature import InputSpec
    >>> [fixed_batch(Signature("onnx", (InputSpec("x", (first, 8)),))) for first in ("n", 1, 64)]
    [1, 1, 64]
    """
    leading = _leading(signature)
    first = next(iter(leading)) if len(leading) == 1 else None
    return first if isinstance(first, int) and first > 1 else 1


def may_differ(signature: Signature) -> bool:
    """Whether the model itself declares its first axes to be different ones."""
    return len(_leading(signature)) > 1


def _leading(signature: Signature) -> set[int | str | None]:
    return {axes[0] for axes in _shapes(signature)}


def _shapes(signature: Signature) -> list[Axes]:
    return [spec.shape for spec in signature.inputs if spec.shape]


def _is_later(axes: Axes) -> bool:
    called = [isinstance(axis, str) and "batch" in axis.casefold() for axis in axes]
    return any(called) and not called[0]
