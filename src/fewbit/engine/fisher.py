# SPDX-License-Identifier: Apache-2.0
"""How much a model's answers suffer when a weight changes, from gradients of a few items.

Where rounding changes an answer's logits z by d, the KL divergence from the float model's answer is d F d / 2, with
F = diag(p) - p pᵀ and p = softmax(z). A random v with E[v vᵀ] = F makes one gradient g of v·z by all weights enough:
(g·Δw)² is d F d in the mean. Rounding errors of different weights are as good as independent, so what is left are the
squares, Σ g² Δw². Of g² only the sums over rows and over columns are kept; their product over the total is nearly as
good as the whole (it is what Adafactor keeps, arXiv 1804.04235), and small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fewbit.engine.judging_tokens import scores_of
from fewbit.engine.pairing import Pair
from fewbit.engine.questions import Question
from fewbit.errors import DataError
from fewbit.model.points import Point


@dataclass
class Curvature:
    """Sums of squared gradients of one weight: over rows `[stack…, out]`, and over columns `[stack…, in · kernel]`."""

    rows: Tensor
    columns: Tensor

    def harm(self, off: Tensor, stack: int) -> float:
        """Half of Σ g² Δw², with Δw in the weight's shape."""
        square = off.flatten(stack + 1).square()
        total = self.rows.sum(-1).clamp(min=torch.finfo(torch.float32).tiny)
        found = torch.einsum("...oi,...o,...i->...", square, self.rows, self.columns) / total
        return 0.5 * float(found.double().sum())


@dataclass
class Curvatures:
    """What a pass over items finds.

    Args:
        found: by the name of a weight; those that no answer depends on are not there.
        positions: how many answers there were: positions of texts, samples of classes, rows of values.
        items: how many items.
    """

    found: dict[str, Curvature] = field(default_factory=dict)
    positions: int = 0
    items: int = 0

    def collect(self, view: Any, points: Sequence[Point], asked: Iterable[Question]) -> None:
        """Run items forth and back.

        Args:
            view: with `gradients` in `can`.
            points: of weights.
            asked: the items.

        Raises:
            DataError: as `SensingView.gradients`, or gradients that are not finite.
        """
        questions: list[Question] = []

        def items() -> Iterator[Any]:
            for question in asked:
                questions[:] = [question]
                yield question.item

        def weigh(index: int, answers: list[Tensor]) -> list[Tensor | None]:
            output, weights, positions = direction(questions[0], answers, index)
            self.positions, self.items = self.positions + positions, self.items + 1
            return [weights if number == output else None for number in range(len(answers))]

        view.gradients(points, items(), weigh, self.take)
        odd = [name for name, each in self.found.items() if not bool(each.rows.sum().isfinite())]
        if odd:
            raise DataError(
                f"the gradients by {len(odd)} weights are not finite, such as by {odd[0]}",
                code="not-finite",
                where="calibration data",
                expected="finite answers of the float model to every sample",
                try_="bfloat16 or float32, if the model is float16",
            )

    def take(self, point: Point, gradient: Tensor) -> None:
        """One item's gradient by a weight."""
        square = gradient.detach().float().flatten(point.stack + 1).square()
        rows, columns = square.sum(-1), square.sum(-2)
        old = self.found.get(point.name)
        self.found[point.name] = Curvature(rows, columns) if old is None else Curvature(
            old.rows + rows, old.columns + columns
        )  # fmt: skip


def direction(question: Question, answers: list[Tensor], seed: int) -> tuple[int | None, Tensor, int]:
    """A random direction in a model's answers, whose covariance is their Fisher information.

    Scores, of tokens or of classes, are taken for logits; other values are as likely as a normal distribution of their
    own spread makes them.

    Args:
        question: what was asked.
        answers: the answers, not to be changed.
        seed: of the random numbers.

    Returns:
        The number of the answer that counts, the direction, and how many positions or samples it is about.
    """
    tokens = scores_of(Pair(question, 0, 0, answers, answers))
    first = next((n for n, x in enumerate(answers) if x.ndim and x.is_floating_point()), None)
    number = first if tokens is None else tokens
    if number is None:
        return None, torch.zeros(()), 0
    answer = answers[number].float()
    signs = torch.randint(0, 2, answer.shape, generator=torch.Generator().manual_seed(seed)).mul_(2).sub_(1)
    noise = signs.to(answer)
    if tokens is None and not (answer.ndim == 2 and answer.shape[1] > 1):
        spread = answer.std() if answer.numel() > 1 else answer.abs().mean()
        return number, noise / spread.clamp(min=1e-12), answer.numel() // answer.shape[-1]
    p = answer.softmax(-1)
    v = p.sqrt() * noise
    v -= p * v.sum(-1, keepdim=True)
    real = question.real(answer) if tokens is not None else None
    if real is None:
        return number, v, len(answer)
    return number, v * real.to(v)[..., None], int(real.sum())
