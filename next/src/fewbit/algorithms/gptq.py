# SPDX-License-Identifier: Apache-2.0
"""GPTQ (Frantar et al., arXiv 2210.17323): columns are rounded one by one, and later ones make up for earlier errors.

Two refinements pay (docs/algorithms.md has the figures): scales minimize the error weighted by the second moment of the
inputs; and where the float model's activations are known, the weight is first moved to the one whose outputs are
nearest to the float model's, W' = W + R (H + λI)⁻¹, so that each layer makes up for what the layers before it lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fewbit.algorithms._base import LayerProblem
from fewbit.algorithms._scale_search import search_scales
from fewbit.errors import DataError, require
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import fake_quantize
from fewbit.numerics.sparsity import is_pruned

if TYPE_CHECKING:
    from torch import Tensor


class Gptq:
    """Rounding with error feedback, in torch."""

    name = "gptq"
    stage = "weight"
    statistics = frozenset({"hessian"})
    requires = "torch"
    settings: Mapping[str, Any] = {"damping": 0.1, "pull": 0.5}

    def quantize(self, problem: LayerProblem, *, damping: float = 0.1, pull: float = 0.5) -> QTensor:
        """Choose scales and integers of one weight.

        Args:
            problem: a weight with the Hessian of its inputs.
            damping: added to the Hessian's diagonal, as a share of its mean.
            pull: λ as such a share: how strongly the weight is held where it is.

        Raises:
            DataError: the Hessian has values that are not finite.
        """
        torch = require("torch", extra="torch", purpose="GPTQ")
        moments = problem.moments
        assert moments is not None and moments.hessian is not None, problem.name
        weight = torch.as_tensor(problem.weight).float()
        hessian = torch.as_tensor(moments.hessian, device=weight.device)
        if not bool(torch.isfinite(hessian.diagonal()).all()):
            raise DataError(
                f"the inputs of the layer {problem.name} are not finite", code="activations-not-finite",
                where=problem.name, expected="finite activations on the calibration data",
                hint="{ignore=" + problem.name + "}, or compute in float32",
            )  # fmt: skip
        target = self._target(problem, weight, hessian, pull)
        mask = weight != 0
        pruned = is_pruned(int((~mask).sum()), mask.numel()) and not problem.grid.free_zero
        return _solve(problem, target, hessian, damping, mask if pruned else None)

    def _target(self, problem: LayerProblem, weight: Tensor, hessian: Tensor, pull: float) -> Tensor:
        """The weight whose outputs are nearest to the float model's."""
        import torch

        from fewbit.algorithms._columns import damped_cholesky

        assert problem.moments is not None
        gap = problem.moments.output_gap
        if gap is None and problem.moments.input_gap is not None:
            gap = weight @ torch.as_tensor(problem.moments.input_gap, device=weight.device)
        if gap is None:
            return weight
        if "pull" not in problem.shared:
            problem.shared["pull"] = damped_cholesky(hessian.clone(), pull)
        return weight + torch.cholesky_solve(gap.T, problem.shared["pull"]).T


def _solve(problem: LayerProblem, weight: Tensor, hessian: Tensor, damping: float, mask: Tensor | None) -> QTensor:
    from fewbit.algorithms._columns import column_order, feedback_matrix, round_columns

    grid = problem.grid
    present = weight if mask is None else weight * mask
    qparams = search_scales(present, grid, hessian.diagonal(), problem.shared.get("global_scale"))
    height, width = qparams.block
    if "feedback" not in problem.shared:
        order = column_order(hessian, width)
        problem.shared["order"], problem.shared["feedback"] = order, feedback_matrix(hessian, order, damping)
    step, zero = qparams.step, qparams.zero_point
    if height > 1:
        step = step.repeat_interleave(height, 0)[: len(weight)]
        zero = None if zero is None else zero.repeat_interleave(height, 0)[: len(weight)]
    values = round_columns(
        weight, step, zero, _rounding(grid), problem.shared["order"], problem.shared["feedback"],
        group=width,
        integer=(int(grid.dtype.lowest), int(grid.dtype.highest)) if grid.dtype.is_integer else None, mask=mask,
    )  # fmt: skip
    return QTensor.encode(values, qparams)


def _rounding(grid: QuantizationGrid) -> Any:
    """To the nearest value of the grid, in units of the scale."""
    import torch

    from fewbit.numerics.grid import QParams
    from fewbit.numerics.scales import ScaleType

    if grid.dtype.is_integer:
        low, high = grid.dtype.lowest, grid.dtype.highest
        return lambda x: x.round_().clamp_(low, high)
    plain = grid.replace(scale_type=ScaleType.float32)
    return lambda x: fake_quantize(x, QParams(plain, tuple(x.shape), torch.ones((1,) * x.ndim, device=x.device)))


ALGORITHM = Gptq()
