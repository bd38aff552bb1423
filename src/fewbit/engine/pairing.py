# SPDX-License-Identifier: Apache-2.0
"""Two models' answers to the same questions, a few at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice

from torch import Tensor

from fewbit.data.dataset import Dataset
from fewbit.engine.damage import Damage
from fewbit.engine.questions import Question, questions
from fewbit.errors import DataError
from fewbit.model.view import ModelView

_AT_ONCE, _MOST = 32 << 20, 64
"""Bytes of answers, and items, that are asked together; with a vocabulary of 50,000 it is one item at a time."""


@dataclass(frozen=True)
class Pair:
    """What two models answer to one question.

    Args:
        question: as the original takes it.
        item: its number.
        first: the number of its first sample.
        ours: the original's float outputs.
        theirs: the other's, of the same shapes.
    """

    question: Question
    item: int
    first: int
    ours: list[Tensor]
    theirs: list[Tensor]


def pairs(
    dataset: Dataset, original: ModelView, compressed: ModelView, *, batch_size: int = 1, damage: Damage | None = None
) -> Iterator[Pair]:
    """Ask both models everything. One has answered before the other is asked: running a model changes global state.

    Args:
        dataset: the questions; read twice side by side, as each model takes them.
        original: a model.
        compressed: another.
        batch_size: samples of an item.
        damage: looks on at the first items.

    Raises:
        DataError: a sample that does not fit, a model that fails, answers of other shapes.
    """
    asked = (questions(dataset, view.signature(), batch_size) for view in (original, compressed))
    both = zip(*asked)
    done, first, many = 0, 0, 1
    while chunk := list(islice(both, many)):
        looks = damage if damage is not None and damage.wants_more else None
        with nullcontext() if looks is None else looks.on_compressed(chunk[0][1]):
            theirs = _answers(compressed, [question for _, question in chunk], "the compressed model")
        with nullcontext() if looks is None else looks.on_original():
            ours = _answers(original, [question for question, _ in chunk], "the original")
        for (question, _), a, b in zip(chunk, ours, theirs):
            _refuse_other_shapes(a, b, question.place)
            yield Pair(question, done, first, a, b)
            done, first = done + 1, first + question.samples
        each = max(1, sum(answer.nbytes for answers in (ours, theirs) for answer in answers[-1]))
        many = 1 if damage is not None and damage.wants_more else max(1, min(_MOST, _AT_ONCE // each))


def _answers(view: ModelView, asked: Sequence[Question], who: str) -> list[list[Tensor]]:
    try:
        return list(view.answers(question.item for question in asked))
    except DataError as error:
        number = re.fullmatch(r"item (\d+)", error.where or "")  # of those it was given now
        place = asked[int(number[1])].place if number else error.where
        raise DataError(
            f"{who}: {error.what}", code=error.code, where=place, expected=error.expected, try_=error.try_
        ) from error


def _refuse_other_shapes(ours: list[Tensor], theirs: list[Tensor], place: str) -> None:
    wanted, found = ([tuple(answer.shape) for answer in answers] for answers in (ours, theirs))
    if wanted != found or not wanted:
        raise DataError(
            f"the original answers {wanted}, the compressed model {found}",
            code="answers-differ",
            where=place,
            expected="float outputs of the same shapes from both",
            try_="two models of the same build, or a transform that gives both what they take",
        )
