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

from fewbit.sparsity.shrinking.moments import Moments

_DAMPING = 0.01


@dataclass
class Reader:
    """One weight, its input axis first.

    Args:
        weight: `[in, out, kernel…]`, float64.
        classes: of each input feature.
        second: `[in, in]`, damped: covariance with a bias, second moment without; `[in]` where it is too wide.
        mean: `[in]` of what is read; none without a bias that may take it.
        stay: which features are left.
    """

    weight: Tensor
    classes: Tensor
    second: Tensor
    mean: Tensor | None
    stay: Tensor

    @classmethod
    def of(cls, weight: Tensor, classes: Tensor, moments: Moments, *, has_bias: bool) -> Reader:
        """A reader of which nothing is gone yet."""
        second, mean = moments.gram / moments.count, moments.sum / moments.count
        if second.ndim == 1:
            return cls(weight, classes, second, None, torch.ones(len(classes), dtype=torch.bool))
        if has_bias:
            second = second - torch.outer(mean, mean)
        spread = second.diagonal().mean().clamp_min(1e-12)
        second = second + _DAMPING * spread * torch.eye(len(second), dtype=torch.float64)
        return cls(weight, classes, second, mean if has_bias else None, torch.ones(len(classes), dtype=torch.bool))

    def costs(self, candidates: list[int]) -> Tensor:
        """What taking out each class adds to the squared error of what the weight answers."""
        flat = self.weight.reshape(len(self.weight), -1)
        if self.second.ndim == 1:
            each = flat.square().sum(1) * self.second
            return torch.stack([each[(self.classes == one) & self.stay].sum() for one in candidates])
        left = self.stay.nonzero().flatten()
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(self.second[left][:, left]))
        flat = inverse @ (self.second[left] @ flat)
        classes = self.classes[left]
        if len(classes.unique()) == len(classes):  # one feature a class: no small matrix to invert
            places = {one: place for place, one in enumerate(classes.tolist())}
            each = flat.square().sum(1) / inverse.diagonal()
            return torch.stack([each[places[one]] if one in places else each.new_zeros(()) for one in candidates])
        found = []
        for one in candidates:
            mine = (classes == one).nonzero().flatten()
            part = flat[mine]
            found.append((part * torch.linalg.solve(inverse[mine][:, mine], part)).sum())
        return torch.stack(found)

    def take(self, gone: list[int]) -> None:
        """Let classes be gone."""
        self.stay &= ~torch.isin(self.classes, torch.tensor(gone, dtype=torch.int64))

    def refitted(self) -> tuple[Tensor, Tensor | None]:
        """The weight with what stays making up for what is gone, zeros there; and what the bias takes, `[out]`."""
        if self.second.ndim == 1 or bool(self.stay.all()):
            return self.weight * self.stay.view(-1, *(1,) * (self.weight.ndim - 1)), None
        left = self.stay.nonzero().flatten()
        flat = self.weight.reshape(len(self.weight), -1)
        new = torch.zeros_like(flat)
        new[left] = torch.linalg.solve(self.second[left][:, left], self.second[left] @ flat)
        weight = new.reshape(self.weight.shape)
        if self.mean is None:
            return weight, None
        lost = torch.tensordot(self.mean, self.weight - weight, 1)
        return weight, lost.reshape(len(lost), -1).sum(1)
