# SPDX-License-Identifier: Apache-2.0
"""What the layers of a stage read, on the grids of their inputs: weights are settled for what they will meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from fewbit.engine.collect import refuse_non_finite
from fewbit.engine.lanes import Lanes, LaneSums
from fewbit.engine.plan import WeightPlan
from fewbit.engine.second_moments import Gathered
from fewbit.model.points import Point, Role
from fewbit.model.walking import Stage
from fewbit.modules.activation import ActivationQuantizer
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams
from fewbit.observers._finite import FiniteGuard

# Layers with the same key read the same numbers; scales are compared by their bytes.
_Key = tuple[Grid, bytes, bytes] | None


class RoundedInputs:
    """How the inputs of layers are rounded.

    Args:
        settled: activations that are quantized, with fixed scales or with the grid alone; only inputs are looked at.
    """

    def __init__(self, settled: Mapping[Point, QParams | Grid] | None = None):
        inputs = [(point, how) for point, how in (settled or {}).items() if point.role is Role.input]
        self._keys: dict[tuple[str, str], _Key] = {(p.layer, name): _key(how) for p, how in inputs for name in p.feeds}
        # What is caught on a walk is `[positions, features]`, whatever it was cut from.
        self._quantizers = {_key(how): _quantizer(how) for _, how in inputs}

    def groups(self, weights: Sequence[WeightPlan]) -> list[list[WeightPlan]]:
        """The weights of a stage, those together whose layers round what they read in the same way."""
        found: dict[_Key, list[WeightPlan]] = {}
        for w in weights:
            found.setdefault(self._key(w), []).append(w)
        return list(found.values())

    def gather(
        self, stage: Stage, groups: Sequence[Sequence[WeightPlan]], lanes: Lanes, read: Callable[[Point], Tensor]
    ) -> list[Gathered]:
        """The moments of what each group reads, from one pass over the items.

        Args:
            stage: not asked yet.
            groups: of its weights.
            lanes: of the items.
            read: gives a weight as it is by now.

        Raises:
            DataError: a value that is not finite.
        """
        sums, guard = LaneSums(lanes, len(groups)), FiniteGuard()
        keys = [self._key(group[0]) for group in groups]
        weights = [read(group[0].point) if len(group) == 1 and len(stage.layers) == 1 else None for group in groups]
        weights = [None if weight is None or weight.ndim != 2 else weight for weight in weights]
        for given in stage.inputs():
            found = guard.admit(given.found, given.item)
            for key, weight, seen in zip(keys, weights, sums.at(given.item)):
                seen.add(replace(given, found=self._rounded(key, found)), weight)
        refuse_non_finite({groups[0][0].point: guard})
        return sums.total()

    def _key(self, w: WeightPlan) -> _Key:
        return self._keys.get((w.point.layer, w.point.tensor))

    def _rounded(self, key: _Key, x: Tensor) -> Tensor:
        return x if key is None else self._quantizers[key].to(x.device).moved(x)


def _key(how: QParams | Grid) -> _Key:
    if isinstance(how, Grid):
        return how, b"", b""
    zero = b"" if how.zero_point is None else how.zero_point.cpu().numpy().tobytes()
    return how.grid, how.scale.cpu().numpy().tobytes(), zero


def _quantizer(how: QParams | Grid) -> ActivationQuantizer:
    return ActivationQuantizer(how, -1) if isinstance(how, Grid) else ActivationQuantizer(how.grid, -1, how)
