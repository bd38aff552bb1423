# SPDX-License-Identifier: Apache-2.0
"""Texts and pictures as they were read, on their way into a model that takes them only after preprocessing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fewbit.data.arrays.description import ArrayInfo
from fewbit.data.arrays.fitted import Fit, Problem
from fewbit.data.signature import Signature

BY_TRANSFORM = (
    "a transform_fn (--transform file.py:function) that returns a dict of arrays under the model's input names, with a "
    "batch axis and in its dtypes (texts: tokenized; pictures: as the model was trained on them)"
)
"""What to try about data that a model cannot take as they are."""

_OF_PICTURES = frozenset({"image_folder", "yolo", "huggingface"})
"""Formats whose pictures come as they were decoded: bytes, channels last."""


def with_raw(meets: Fit, found: Mapping[str, ArrayInfo], signature: Signature, format: str | None) -> Fit:
    """How a sample meets a model, with one problem for each text or picture in it that the model does not take.

    A model with `**kwargs` takes any name, and a PyTorch module says nothing about shapes, so names alone would let
    both through.

    Args:
        meets: what names, shapes and dtypes say.
        found: the sample's arrays by name.
        signature: the model's inputs.
        format: what the sample was read from.
    """
    dtypes = {spec.name: spec.dtype for spec in signature.inputs}
    texts, problems = set(), []
    for step in meets.steps:
        info, dtype = found[step.key], dtypes.get(step.name)
        message = None
        if info.dtype in ("str", "object") and dtype != "str":
            message = f"{step.key!r} is no array of numbers"
            texts.add(step.name)
        elif format in _OF_PICTURES and dtype is None and signature.floating is not None and _is_picture(info):
            message = f"{step.key!r} is a picture as decoded ({info}), and the model computes in {signature.floating}"
        if message is not None:
            problems.append(Problem("dtype-refused", message, step.name, BY_TRANSFORM))
    # The shape of a text says nothing.
    others = (p for p in meets.problems if p.input not in texts or p.code not in ("input-shape", "dtype-refused"))
    return replace(meets, problems=(*others, *problems)) if problems else meets


def _is_picture(info: ArrayInfo) -> bool:
    return info.dtype == "uint8" and len(info.shape) == 3 and info.shape[-1] == 3
