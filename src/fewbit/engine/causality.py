# SPDX-License-Identifier: Apache-2.0
"""Whether a model of tokens looks ahead: a run with another last token shows it, whatever the model is made of."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fewbit.data.tree import map_leaves
from fewbit.engine.questions import Question
from fewbit.model.view import ModelView

_NOTHING = 1e-4
"""Of what changes at the token itself: rounding changes less than this at positions before it, attention more."""


def looks_ahead(view: ModelView, question: Question, answer: Tensor) -> bool | None:
    """Whether what comes later changes a model's answers.

    Args:
        view: of the model.
        question: of token ids.
        answer: its scores, `[samples, positions, choices]`, one of the model's answers.

    Returns:
        None where the question does not tell: it has one token, or the model does not care which.
    """
    found, real = question.tokens(answer), question.real(answer)
    assert found is not None and real is not None
    places = real[0].nonzero().flatten().tolist()
    if len(places) < 2:
        return None
    last, before = places[-1], places[:-1]
    changed = map_leaves(
        lambda leaf: _with_another(leaf, last, answer.shape[-1]) if leaf is question.named[found[0]] else leaf,
        question.item,
    )
    (answers,) = view.answers([changed])
    other = next(each for each in answers if each.shape == answer.shape)
    there = float((other[0, last] - answer[0, last]).abs().max())
    ahead = float((other[0, before] - answer[0, before]).abs().max())
    return ahead > _NOTHING * there if there else None


def _with_another(ids: Any, place: int, choices: int) -> Any:
    """The same ids with another one in the first sample."""
    copy = ids.clone() if hasattr(ids, "clone") else ids.copy()
    copy[0, place] = (int(copy[0, place]) + 1) % choices
    return copy
