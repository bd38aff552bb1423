# SPDX-License-Identifier: Apache-2.0
"""What makes figures of two models' answers, and which of them suits the answers."""

from __future__ import annotations

from typing import Any, Protocol

from fewbit.engine.causality import looks_ahead
from fewbit.engine.judging_classes import ClassJudge
from fewbit.engine.judging_tokens import TokenJudge, scores_of
from fewbit.engine.judging_values import ValueJudge
from fewbit.engine.pairing import Pair
from fewbit.errors import UsageError
from fewbit.model.view import ModelView
from fewbit.record import Record

KINDS = ("language", "classes", "values")


class Judge(Protocol):
    """What makes figures of answers."""

    kind: str

    @property
    def samples(self) -> int:
        """How many the figures rest on."""

    def take(self, pair: Pair) -> None:
        """Take one item's answers in."""

    def facts(self) -> dict[str, Any]:
        """Everything found, each figure with its interval."""

    def verdict(self) -> str:
        """What may be said, in words."""


def judge_for(pair: Pair, view: ModelView, kind: str | None, record: Record) -> Judge:
    """Who can make figures of such answers.

    Args:
        pair: the first item's.
        view: of the original, which is asked once more whether it looks ahead.
        kind: what answers are said to be; found by looking if not given.
        record: takes a line about what was found or assumed.

    Raises:
        UsageError: answers that are not what they are said to be.
    """
    output = scores_of(pair)
    if kind == "language" and output is None:
        raise UsageError(
            f"no answer has the scores of a next token: {_shapes(pair)}",
            where="kind",
            expected="token ids [samples, positions] and scores [samples, positions, choices]",
        )
    if output is not None and kind in (None, "language"):
        ahead = looks_ahead(view, pair.question, pair.ours[output])
        if ahead:
            record.note("looks-ahead", "a later token changes the answer at an earlier one: this model does not guess")
        return TokenJudge(reads_ahead=bool(ahead))
    # A model that was given labels answers with its loss first; an encoder with positions, and a summary after them.
    first = next((number for number, answer in enumerate(pair.ours) if answer.ndim), None)
    scores = first if first is not None and pair.ours[first].ndim == 2 and pair.ours[first].shape[1] > 1 else None
    if kind == "values" or scores is None:
        if kind == "classes":
            found = f"no answer has the scores of classes: {_shapes(pair)}"
            raise UsageError(found, where="kind", expected="[samples, classes]")
        return ValueJudge()
    if kind is None:
        reason = f"{tuple(pair.ours[scores].shape)} is taken for samples and the scores of classes"
        record.note("assumed", reason, try_="kind='values'")
    return ClassJudge(scores)


def _shapes(pair: Pair) -> str:
    return ", ".join(str(tuple(answer.shape)) for answer in pair.ours)
