# SPDX-License-Identifier: Apache-2.0
"""The choices that outputs make, how often two models choose the same, and when a result does not work.

The rules, all in this module:

- A choice is the largest entry along the class axis: axis 1 of `[N, C, H, W]` and `[N, C, D, H, W]`, else the last one.
  A value of an integer output, such as that of ArgMax, is a choice itself.
- Class scores count alone if there are any: `[N, C]` with a row for each sample, and logits of a language model. Else
  integer outputs count if no float output of two or more axes is beside them (class numbers beside the boxes of a
  detector change places with them). Else all others count, whose largest entry may mean nothing.
- A result is broken if agreement is below 80 %, or if it is below 60 % on the positions where the original's choice is
  not its most frequent one: a blank, a background or a class that most samples have hides the loss of all others. There
  must be at least 20 such positions; for 5 to 19, agreement there must be below 40 %.
- A small error cannot break a result, because choices change between near ties. Agreement counts if the relative error
  is above 1 % for known scores (probabilities, language models), 5 % for others, and 20 % for outputs with 64 or more
  entries that are not probabilities: they may be embeddings, whose largest entry means nothing. On the positions of
  other choices it counts above 5 %, or 20 % for the last kind. Of integers no error is known, and none is asked for.
- A result whose outputs have no choice is broken if its SQNR is below 3 dB. The original's mean is no signal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.engine.divergence import are_probabilities
from fewbit.engine.nearness import class_axis

_AGREEMENT, _OTHERS, _FEW_OTHERS = 0.8, 0.6, 0.4
_POSITIONS, _FEW = 20, 5
_KNOWN, _UNSURE, _EMBEDDING = 0.01, 0.05, 0.2
_WIDE = 64
_SQNR = 3.0  # dB


@dataclass(frozen=True)
class Choices:
    """How often two models choose the same.

    Args:
        agreement: the share of all positions; `None` if the outputs make no choice.
        others: the share of the positions where the original's choice is not its most frequent one.
        positions: how many of these there are.
        least_error: the relative error above which `agreement` counts.
        least_error_of_others: the one above which `others` does.
    """

    agreement: float | None = None
    others: float | None = None
    positions: int = 0
    least_error: float = _UNSURE
    least_error_of_others: float = _UNSURE

    def reason(self, error: float, sqnr: float | None) -> str | None:
        """Why a result does not work, if it does not; `sqnr` is about the mean."""
        if self.agreement is None:
            return f"SQNR about the mean {sqnr:.1f} dB" if sqnr is not None and sqnr < _SQNR else None
        if self.agreement < _AGREEMENT and error > self.least_error:
            return f"agreement with the original {self.agreement:.1%}"
        least = _OTHERS if self.positions >= _POSITIONS else _FEW_OTHERS if self.positions >= _FEW else 0.0
        if self.others is not None and self.others < least and error > self.least_error_of_others:
            where = f"the {self.positions} positions where the original's choice is not its most frequent one"
            return f"agreement with the original {self.agreement:.1%}, but {self.others:.1%} of {where}"
        return None


@dataclass
class _Output:
    """One output of all items, as far as it makes choices."""

    kind: int  # 0: class scores, 1: integers, 2: others
    wide: bool
    probabilities: bool
    known: bool
    ours: list[Tensor]
    theirs: list[Tensor]


def compare_choices(
    wanted: Sequence[list[Tensor]], found: Sequence[list[Tensor]], samples: Sequence[int], *, language: bool
) -> Choices:
    """Compare what two models choose.

    Args:
        wanted: outputs of the float model, item by item.
        found: those of the quantized model.
        samples: how many samples each item has.
        language: whether the outputs are logits of a language model, a row for each position.

    >>> wanted, found = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> compare_choices([[wanted]], [[found]], [2], language=False).agreement
    0.5
    """
    outputs: dict[int, _Output] = {}
    for ours, theirs, count in zip(wanted, found, samples):
        for index, (a, b) in enumerate(zip(ours, theirs)):
            if a.shape == b.shape and a.numel():
                _add(outputs, index, a, b, count, language=language)
    floats = any(a.is_floating_point() and a.ndim > 1 for ours in wanted for a in ours)
    kept = [each for each in outputs.values() if each.kind != 1 or not floats]
    kind = min((each.kind for each in kept), default=0)
    kept = [each for each in kept if each.kind == kind]
    if not kept:
        return Choices()
    hits, others = zip(*(_hits(each) for each in kept))
    same, rest = torch.cat(hits), torch.cat(others)
    if kind == 1:
        least = least_of_others = 0.0
    else:
        wide = any(each.wide and not (each.known or each.probabilities) for each in kept)
        known = kind == 0 and all(each.known or each.probabilities for each in kept)
        least = _EMBEDDING if wide else _KNOWN if known else _UNSURE
        least_of_others = _EMBEDDING if wide else _UNSURE
    return Choices(
        float(same.double().mean()), float(rest.double().mean()) if len(rest) else None, len(rest), least,
        least_of_others,
    )  # fmt: skip


def _add(outputs: dict[int, _Output], index: int, a: Tensor, b: Tensor, count: int, *, language: bool) -> None:
    if not a.is_floating_point():
        kind, ours, theirs = 1, a, b
        wide = probabilities = False
    else:
        axis = class_axis(a) if a.ndim > 1 else None
        if axis is None:
            return
        kind = 0 if language or (a.ndim == 2 and len(a) == count) else 2
        ours, theirs = a.argmax(axis), b.argmax(axis)
        wide, probabilities = a.shape[axis] >= _WIDE, are_probabilities(a.movedim(axis, -1).flatten(0, -2))
    one = outputs.setdefault(index, _Output(kind, wide, True, language, [], []))
    one.kind, one.wide, one.probabilities = max(one.kind, kind), one.wide or wide, one.probabilities and probabilities
    one.ours.append(ours.flatten().to("cpu", torch.int64))
    one.theirs.append(theirs.flatten().to("cpu", torch.int64))


def _hits(output: _Output) -> tuple[Tensor, Tensor]:
    """Where both choose the same, at all positions, and at those where ours is not its most frequent choice."""
    ours, theirs = torch.cat(output.ours), torch.cat(output.theirs)
    same = ours == theirs
    return same, same[ours != ours.mode().values]
