# SPDX-License-Identifier: Apache-2.0
"""What pruning algorithms share: masks with an exact number of zeros, and the best values of what is left.

With the second moment H of the inputs, the output error of a pruned row v is (v - w) H (v - w)ᵀ. For a fixed mask its
minimum is a linear system per row; conjugate gradients solve all rows at once, as they need only products with H.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from fewbit.algorithms._base import InputMoments, PruningProblem
from fewbit.errors import DataError, UsageError
from fewbit.numerics.ops import Array, amax, like, namespace
from fewbit.numerics.sparsity import SparsityPattern, distribute_zeros, highest, sparsity_mask, zero_count

if TYPE_CHECKING:
    from torch import Tensor

_CONVERGED = 1e-9
"""Of a row's first squared gradient; what is left is rounding of float32."""


def pruning_mask(weight: Array, scores: Array, pattern: SparsityPattern, *, within_rows: bool = False) -> Array:
    """True for the elements that stay: those with the highest scores; zeros of the weight go first.

    Args:
        weight: [out, in, kernel…].
        scores: of the same shape, none negative; of a block pattern their squares are added.
        pattern: how many zeros, and which together.
        within_rows: compare only elements of the same output, with zeros distributed evenly over the outputs; their
            number in all is that of the pattern.
    """
    xp, nonzero = namespace(weight), weight != 0
    if pattern.block != (1, 1):
        scores = scores / xp.clip(amax(scores.reshape(-1), 0), 1e-30, None)
        scores = xp.where(nonzero, xp.clip(scores * scores, 1e-30, None), xp.zeros_like(scores))
        return sparsity_mask(scores, pattern) & nonzero
    scores = xp.where(nonzero, scores, xp.full_like(scores, -1.0))
    if not within_rows or pattern.group or pattern.per_row:
        return sparsity_mask(scores, pattern) & nonzero
    rows, present = scores.reshape((scores.shape[0], -1)), nonzero.reshape((scores.shape[0], -1))
    width = rows.shape[1]
    zeros = distribute_zeros(zero_count(pattern.sparsity, prod(rows.shape)), (width - present.sum(1)).tolist())
    mask = xp.zeros_like(present)
    for count in sorted(set(zeros)):  # mostly one or two
        index = like([number for number, value in enumerate(zeros) if value == count], weight, "int64")
        mask[index] = highest(rows[index], width - count)
    return mask.reshape(scores.shape) & nonzero


def apply_mask(weight: Array, mask: Array) -> Array:
    """The weight with zeros, positive ones, where the mask is false."""
    xp = namespace(weight)
    return xp.where(mask, weight, xp.zeros_like(weight))


def growing_patterns(pattern: SparsityPattern, steps: int) -> Iterator[SparsityPattern]:
    """Patterns with more and more zeros, in steps that become smaller; the last is the pattern itself.

    >>> [str(p) for p in growing_patterns(SparsityPattern.parse("2:4"), 8)]
    ['3:4', '2:4']
    >>> [str(p) for p in growing_patterns(SparsityPattern(0.5), 2)]
    ['44%', '50%']
    """
    if pattern.group:
        for count in range(pattern.group - 1, pattern.nonzero, -1):
            yield replace(pattern, nonzero=count)
    else:
        for step in range(1, steps):
            yield replace(pattern, sparsity=pattern.sparsity * (1 - (1 - step / steps) ** 3))
    yield pattern


def input_scale(problem: PruningProblem) -> Array:
    """√E[x²] in a shape that broadcasts against the weight.

    Raises:
        UsageError: the moments belong to another number of inputs.
    """
    assert problem.moments is not None and problem.moments.second_moment is not None, problem.name
    shape, square = problem.weight.shape, like(problem.moments.second_moment, problem.weight)
    xp = namespace(square)
    scale = xp.sqrt(xp.clip(square, 0, None))
    if len(square) == prod(shape[1:]):  # of a convolution: one per kernel element
        return scale.reshape((1, *shape[1:]))
    if len(square) == shape[1]:
        return scale.reshape((1, -1, *(1,) * (len(shape) - 2)))
    raise _mismatch(problem, len(square))


@dataclass(frozen=True)
class Reconstruction:
    """A weight as a matrix `[out, columns]`, the one its outputs are compared with, and the moment of its inputs.

    Args:
        shape: of the weight.
        weight: float32.
        target: the weight whose outputs are nearest to the float model's; the weight itself if those are not known.
        hessian: damped, [columns, columns].
        cost: 1 / [H⁻¹]ⱼⱼ: what removing column j costs per squared weight if all others compensate.
        exact: the Hessian as it was measured, to compare results by.
    """

    shape: tuple[int, ...]
    weight: Tensor
    target: Tensor
    hessian: Tensor
    cost: Tensor
    exact: Tensor

    def loss(self, values: Tensor) -> float:
        """The squared output error of a pruned weight."""
        difference = values - self.target
        return float(((difference @ self.exact) * difference).sum(dtype=difference.double().dtype))

    def mask(self, scores: Tensor, pattern: SparsityPattern, *, within_rows: bool) -> Tensor:
        """As `pruning_mask`, for the matrix."""
        weight, shaped = self.weight.reshape(self.shape), scores.reshape(self.shape)
        mask: Tensor = pruning_mask(weight, shaped, pattern, within_rows=within_rows)
        return mask.reshape(self.weight.shape)


def reconstruction(problem: PruningProblem, damping: float, shrinkage: float, pull: float) -> Reconstruction:
    """The problem in torch.

    Args:
        problem: with a Hessian.
        damping: share of the mean of the Hessian's diagonal that is added to it.
        shrinkage: share by which everything off the diagonal is reduced: other data has much the same features, in
            other combinations.
        pull: what holds each weight where it is when it is moved towards the outputs of the float model, as a share of
            its second moment.

    Raises:
        DataError: a value is not finite.
        UsageError: the Hessian belongs to another number of inputs, or a setting is out of range.
    """
    import torch

    _check_settings(damping=damping > 0, shrinkage=0 <= shrinkage <= 1, pull=pull > 0)
    moments = problem.moments
    assert moments is not None and moments.hessian is not None, problem.name
    weight = torch.as_tensor(problem.weight).detach().float().flatten(1)
    hessian = torch.as_tensor(moments.hessian, device=weight.device).float()
    if len(hessian) != weight.shape[1]:
        raise _mismatch(problem, len(hessian))
    if not bool(torch.isfinite(hessian.diagonal()).all() and torch.isfinite(weight.sum())):
        raise DataError(
            f"the weight or the inputs of the layer {problem.name} are not finite", code="activations-not-finite",
            where=problem.name, expected="finite weights and activations", hint="{ignore=" + problem.name + "}",
        )  # fmt: skip
    key = f"pruning {damping} {shrinkage}"
    if key not in problem.shared:
        problem.shared[key] = _damped(hessian, damping, shrinkage)
    damped, cost = problem.shared[key]
    target = _target(problem, moments, weight, hessian, pull)
    return Reconstruction(tuple(problem.weight.shape), weight, target, damped, cost, hessian)


def refine(start: Tensor, target: Tensor, mask: Tensor, hessian: Tensor, steps: int) -> Tensor:
    """Values on the mask whose outputs approach those of a target, by conjugate gradients.

    Args:
        start: [out, in], zero outside the mask.
        target: [out, in].
        mask: [out, in], which values are free.
        hessian: [in, in], positive definite.
        steps: at most; as many as a row has free values lead to the optimum.

    >>> import torch
    >>> hessian = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    >>> refine(torch.zeros(1, 2), torch.ones(1, 2), torch.tensor([[True, False]]), hessian, 4).tolist()
    [[1.5, 0.0]]
    """
    import torch

    free, inverse = mask.to(start.dtype), hessian.diagonal().reciprocal()
    values = start.clone()
    residual = ((target - values) @ hessian).mul_(free)
    direction = residual * inverse
    size = (residual * direction).sum(1, keepdim=True)
    enough = size * _CONVERGED
    for _ in range(steps):
        if values.device.type == "cpu" and bool((size <= enough).all()):
            break
        curved = (direction @ hessian).mul_(free)
        curvature = (direction * curved).sum(1, keepdim=True)
        # Rows that have converged stay: beyond the rounding of float32 a step leads anywhere.
        length = torch.where((size > enough) & (curvature > 0), size / curvature, 0.0)
        values.addcmul_(direction, length)
        residual.addcmul_(curved, length, value=-1)
        scaled = residual * inverse
        previous, size = size, (residual * scaled).sum(1, keepdim=True)
        direction = scaled.addcmul_(direction, torch.where(previous > 0, size / previous, 0.0))
    return values


def best_of(case: Reconstruction, *candidates: Tensor) -> Tensor:
    """The candidate with the least output error on the measured inputs, in the shape of the weight."""
    best = min(candidates, key=case.loss)
    return best.reshape(case.shape) + 0.0  # no negative zeros


def _damped(hessian: Tensor, damping: float, shrinkage: float) -> tuple[Tensor, Tensor]:
    import torch

    damped = torch.lerp(hessian, torch.diag(hessian.diagonal()), shrinkage) if shrinkage else hessian.clone()
    diagonal = damped.diagonal()
    mean = diagonal.mean()
    diagonal.add_(damping * torch.where(mean > 0, mean, 1.0))
    lower, failed = torch.linalg.cholesky_ex(damped.double())
    if int(failed):
        return damped, diagonal.clone()
    return damped, torch.cholesky_inverse(lower).diagonal().reciprocal().float()


def _target(problem: PruningProblem, moments: InputMoments, weight: Tensor, hessian: Tensor, pull: float) -> Tensor:
    """W + R (H + Λ)⁻¹ with the gap R of the outputs; each weight is held by a share of its second moment."""
    import torch

    gap: Any = moments.output_gap
    if gap is None and moments.input_gap is not None:
        gap = weight @ torch.as_tensor(moments.input_gap, device=weight.device).float()
    if gap is None:
        return weight
    key = f"pruning pull {pull}"
    if key not in problem.shared:
        held = hessian.double()
        own = held.diagonal().clone()
        held = held + torch.diag(pull * own + 1e-6 * own.mean().clamp_min(1e-30))
        problem.shared[key] = torch.linalg.cholesky(held).float()
    return weight + torch.cholesky_solve(gap.T.float(), problem.shared[key]).T


def _check_settings(**valid: bool) -> None:
    wrong = [name for name, fits in valid.items() if not fits]
    if wrong:
        raise UsageError(
            f"{' and '.join(wrong)} out of range", code="pruning-setting", where=", ".join(wrong),
            expected="damping and pull above 0, shrinkage from 0 to 1", hint="damping=0.01, shrinkage=0.5, pull=1",
        )  # fmt: skip


def _mismatch(problem: PruningProblem, features: int) -> UsageError:
    return UsageError(
        f"statistics of {features} features for a weight of shape {list(problem.weight.shape)}", code="pruning-moments",
        where=problem.name, expected=f"{prod(problem.weight.shape[1:])}: inputs and kernel flattened",
        hint="magnitude, which needs no statistics",
    )  # fmt: skip
