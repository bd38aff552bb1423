# SPDX-License-Identifier: Apache-2.0
"""A stack of experts settled one expert after the other, each for the tokens it was sent.

An expert that was sent too few is settled for what all of them were sent, and named: what one rare token says of a
matrix is less than what the others say of the rare tokens to come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fewbit.algorithms._base import Solution
from fewbit.engine.plan import WeightPlan
from fewbit.engine.second_moments import Gathered
from fewbit.numerics.dealing import dealt
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.sparsity import Pattern, count, kept

FEW = "few_tokens"
"""Among the facts of a weight: how many tokens it was sent, if they were too few."""
_SHARE = 4  # a second moment of fewer rows than a fourth of its sides says little


def are_few(tokens: int, features: int) -> bool:
    """Whether so many tokens tell too little about a matrix that reads so many features."""
    return tokens * _SHARE < features


def settle_stack(
    weight: Tensor, w: WeightPlan, seen: Gathered, settle: Callable[[Tensor, WeightPlan, Gathered], Solution]
) -> Solution:
    """The codes of a stack, expert by expert.

    Args:
        weight: `[experts, out, in]`.
        w: what becomes of it; every expert has scales of its own.
        seen: what each was sent.
        settle: settles the matrix of one.
    """
    tokens = [seen.experts[expert].tokens if expert in seen.experts else 0 for expert in range(len(weight))]
    few = [expert for expert, count in enumerate(tokens) if are_few(count, weight.shape[-1])]
    together = seen.pooled() if few else Gathered()
    found, patterns = [], patterns_of_each(w.pattern, weight)
    for expert, matrix in enumerate(weight):
        point = replace(w.point, shape=tuple(matrix.shape), stack=0, tensor=f"{w.point.tensor}[{expert}]")
        mine = together if expert in few else seen.experts[expert]
        one = replace(w, point=point, block=w.block[1:], pattern=patterns[expert])
        found.append(settle(matrix, one, mine))
    facts = merged([solution.facts for solution in found])
    if few:
        facts[FEW] = [[expert, tokens[expert]] for expert in few]
    return Solution(stacked([solution.qtensor for solution in found], w.block), facts)


def patterns_of_each(pattern: Pattern | None, stack: Tensor) -> list[Pattern | None]:
    """The patterns of the matrices of a stack, as many zeros in all as that of the stack has.

    They are dealt out evenly, those that are there among them; or where the pattern counts the stack as one, its
    smallest elements are zero, wherever they are.

    >>> stack = torch.tensor([[[1.0, 2, 3, 4, 5]], [[6.0, 7, 8, 9, 10]]])
    >>> [each.share for each in patterns_of_each(Pattern(0.5), stack)]
    [0.6, 0.4]
    >>> [each.share for each in patterns_of_each(Pattern(0.5, together=True), stack)]
    [1.0, 0.0]
    """
    if pattern is None or pattern.of or pattern.by_row or pattern.block != (1, 1):
        return [pattern] * len(stack)
    if pattern.together:
        zeros = (~kept(stack.detach().float().abs(), pattern)).flatten(1).sum(1)
    else:
        zeros = dealt(count(pattern.share, stack.numel()), (stack == 0).flatten(1).sum(1))
    return [replace(pattern, share=number / max(1, stack[0].numel())) for number in zeros.tolist()]


def stacked(experts: Sequence[QTensor], block: tuple[int, ...]) -> QTensor:
    """The codes of several matrices as those of one stack."""
    first = experts[0]
    parts = {name: torch.stack([each.tensors()[name] for each in experts]) for name in first.tensors()}
    if first.super_scale is not None:
        parts["super_scale"] = first.super_scale  # which they have in common
    return QTensor.from_tensors(first.grid, (len(experts), *first.shape), block, parts)


def merged(facts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What is known of many matrices as that of one: means of numbers (of zeros the sum), and else what is said first.

    >>> merged([{"error": 0.25, "won": {"rtn": 1.0}}, {"error": 0.75, "won": {"rtn": 0.0}}])
    {'error': 0.5, 'won': {'rtn': 0.5}}
    """
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for each in facts for name in each):
        values = [each[name] for each in facts if name in each]
        if all(isinstance(value, dict) for value in values):
            found[name] = merged(values)
        elif all(isinstance(value, int | float) for value in values):
            found[name] = sum(values) if name.startswith("zeros") else sum(values) / len(values)
        else:
            found[name] = values[0]
    return found
