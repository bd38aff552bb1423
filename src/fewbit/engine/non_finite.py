# SPDX-License-Identifier: Apache-2.0
"""Answers that no figure can be made of."""

from __future__ import annotations

from torch import Tensor

from fewbit.errors import DataError


def refuse_non_finite(ours: Tensor, theirs: Tensor, place: str) -> None:
    """Refuse answers that are not numbers; minus infinity is a score too: what a model never chooses.

    Args:
        ours: the original's.
        theirs: the compressed model's.
        place: where the question came from.

    Raises:
        DataError: whose they are, and how many.
    """
    for who, answer in (("the original", ours), ("the compressed model", theirs)):
        odd = answer.isnan() | answer.isposinf()
        if bool(odd.any()):
            raise DataError(
                f"{who} answers with {int(odd.sum())} values of {answer.numel()} that are no numbers",
                code="not-finite",
                where=place,
                expected="finite answers from both models",
                try_="look at its layers for weights or activations that overflow, and leave those in float",
            )
