# SPDX-License-Identifier: Apache-2.0
"""A weight that reads channels: what it costs to take some out, and how the others make up for them.

With C the second moment of what is read and S what stays, the weights that are left answer best with
`W_S + C_SS⁻¹ C_SR W_R`. What a set J of features costs on top of what is gone already is `tr(W_Jᵀ [C_SS⁻¹]_JJ⁻¹ W_J)`,
as optimal brain surgeon has it. Where there is a bias, C is the covariance, and the bias takes the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.errors import DataError
from fewbit.sparsity.shrinking.moments import Moments

_DAMPING = 0.01


@dataclass
class Reader:
    """One weight, its input axis first.

    Args:
        weight: `[in, out, kernel…]`, float64, as it was.
        classes: of each input feature.
        inverse: of C, damped, over what stays, `[in, in]`; zeros elsewhere. None where it is too wide.
        square: `[in]`, the mean square of what is read.
        mean: `[in]` of what is read; none without a bias that may take it.
        now: the weight as it answers best by now, `[in, …]`; zeros for what is gone.
    """

    weight: Tensor
    classes: Tensor
    inverse: Tensor | None
    square: Tensor
    mean: Tensor | None
    now: Tensor

    @classmethod
    def of(cls, weight: Tensor, classes: Tensor, moments: Moments, *, has_bias: bool) -> Reader:
        """A reader of which nothing is gone yet."""
        second, mean = moments.gram / moments.count, moments.sum / moments.count
        now = weight.reshape(len(weight), -1).clone()
        if second.ndim == 1:
            return cls(weight, classes, None, second, None, now)
        square = second.diagonal().clone()
        if has_bias:
            second = second - torch.outer(mean, mean)
        return cls(weight, classes, _inverse(second), square, mean if has_bias else None, now)

    def costs(self, candidates: list[int]) -> Tensor:
        """What taking out each class adds to the squared error of what the weight answers."""
        if self.inverse is None:
            each = self.now.square().sum(1) * self.square
            return torch.stack([each[self.classes == one].sum() for one in candidates])
        order = torch.argsort(self.classes, stable=True)
        ends = torch.searchsorted(self.classes[order], torch.tensor(candidates), right=True).tolist()
        starts = torch.searchsorted(self.classes[order], torch.tensor(candidates)).tolist()
        if all(end - start <= 1 for start, end in zip(starts, ends, strict=True)):  # no small matrix to invert
            each = self.now.square().sum(1) / self.inverse.diagonal().clamp_min(1e-300)
            each = torch.cat([each[order], each.new_zeros(1)])
            return each[[start if end > start else -1 for start, end in zip(starts, ends, strict=True)]]
        found = []
        for start, end in zip(starts, ends, strict=True):
            mine = order[start:end]
            part = self.now[mine]
            found.append((part * torch.linalg.solve(self.inverse[mine][:, mine], part)).sum())
        return torch.stack(found)

    def take(self, gone: list[int]) -> None:
        """Let classes be gone, and what stays make up for them."""
        out = torch.isin(self.classes, torch.tensor(gone, dtype=torch.int64))
        if self.inverse is None:
            self.now[out] = 0
            return
        mine = (out & (self.inverse.diagonal() > 0)).nonzero().flatten()
        if not len(mine):
            return
        rows = torch.linalg.solve(self.inverse[mine][:, mine], torch.cat([self.inverse[mine], self.now[mine]], 1))
        across = self.inverse[:, mine]
        self.now -= across @ rows[:, len(self.classes) :]
        self.inverse -= across @ rows[:, : len(self.classes)]
        self.now[mine] = 0
        self.inverse[mine] = 0
        self.inverse[:, mine] = 0

    def refitted(self) -> tuple[Tensor, Tensor | None]:
        """The weight with what stays making up for what is gone, zeros there; and what the bias takes, `[out]`."""
        weight = self.now.reshape(self.weight.shape) * (self.weight != 0)  # what was pruned stays so
        if self.mean is None:
            return weight, None
        lost = torch.tensordot(self.mean, self.weight - weight, 1)
        return weight, lost.reshape(len(lost), -1).sum(1)


def _inverse(second: Tensor) -> Tensor:
    """The inverse of a damped second moment; damped more where rounding left it without one.

    Raises:
        DataError: sums that are not finite.
    """
    spread = second.diagonal().mean().clamp_min(1e-12)
    if not bool(torch.isfinite(second).all()):
        raise DataError(
            "what a layer reads is not finite on the calibration samples",
            code="not-finite",
            expected="numbers that are neither NaN nor infinite",
            try_="look at the model's answers to these samples, or score: magnitude",
        )
    for more in range(8):
        damped = second.clone()
        damped.diagonal().add_(spread * max(_DAMPING, 1e-12) * 10.0**more)
        factor, wrong = torch.linalg.cholesky_ex(damped)
        if not int(wrong):
            break
    return torch.cholesky_inverse(factor)
