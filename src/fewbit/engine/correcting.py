# SPDX-License-Identifier: Apache-2.0
"""Correcting: biases make up for what rounding did to the mean of each layer's output.

correct_fast    from what every kernel met in the one calibration pass; nothing is run again
correct_slow    layer after layer, on what the quantized model feeds each: a few items, many runs

Both keep a channel only where it is nearer to its mean on the items kept aside, so the squared error of a layer's
output falls on these too, or stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fewbit.algorithms._base import BiasProblem, OutputMeans, Taps
from fewbit.algorithms._members import Algorithm
from fewbit.data.findings import Progress
from fewbit.engine.collect import is_held_out
from fewbit.engine.plan import Plan
from fewbit.errors import UsageError
from fewbit.model.ops import CONV, CONV_TRANSPOSE, LINEAR
from fewbit.model.points import Point, Role
from fewbit.model.view import Item, ModelView
from fewbit.model.watch import COUNT, SQUARE, SUM, Watch
from fewbit.record import Record

FEW = 20
"""Items that the slow correction looks at: sixteen that teach and four that judge."""

Read = Callable[[Point], Tensor]


def correctable(view: ModelView, plan: Plan, record: Record) -> list[Point]:
    """The weights that become codes in layers whose output can be shifted; the record says which cannot, and why."""
    rounded = {user for w in plan.weights if w.point.role is Role.weight for user in w.point.users}
    biased = {point.layer for point in view.points(lambda p: p.role is Role.bias)}
    found = []
    for point in view.points(lambda p: p.role is Role.weight and p.name in rounded):
        if point.op not in (LINEAR, CONV, CONV_TRANSPOSE) or point.stack:
            kind = "a stack of layers" if point.stack else f"a layer of the kind {point.op.name!r}"
            _leave(record, point.layer, f"{kind} has no one bias that its output is shifted by")
        elif "place" not in view.can and point.layer not in biased:
            _leave(record, point.layer, "it has no bias, and modules that a file is loaded into have no place for one")
        else:
            found.append(point)
    return found


def correct_fast(
    view: ModelView,
    solver: Algorithm,
    points: Iterable[Point],
    weight: Read,
    rounded: Read,
    taps: Mapping[str, Mapping[bool, Taps]],
    record: Record,
) -> dict[str, Tensor]:
    """Shift layers by what rounding their weights did to the mean of their output.

    Args:
        view: of the model whose layers are shifted.
        solver: an algorithm of the stage `"correct"` that needs `taps`.
        points: the weights that were rounded, as `correctable` gives them.
        weight: reads one as it was.
        rounded: reads the values its codes stand for.
        taps: by layer, from the items that teach (False) and from those kept aside (True).
        record: takes a line about each layer.

    Returns:
        What was added, by layer; layers that were left alone are not there.
    """
    made = {}
    for point in points:
        seen = taps.get(point.layer, {})
        problem = BiasProblem(
            weight(point), rounded(point), point.groups, seen.get(False), seen.get(True), name=point.layer
        )
        amount = _shift(view, point.layer, solver, problem, record)
        if amount is not None:
            made[point.layer] = amount
    return made


def correct_slow(
    view: ModelView,
    twin: ModelView,
    solver: Algorithm,
    points: Iterable[Point],
    items: Sequence[Item],
    record: Record,
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """Shift the layers of a quantized model, one after the other, until the mean of each is the float model's.

    Args:
        view: of the float model.
        twin: of the quantized one, which is shifted: a view with codes, or one whose weights were written as what
            their codes stand for.
        solver: an algorithm of the stage `"correct"` that needs `sum` and `count`.
        points: the weights that were rounded, as `correctable` gives them.
        items: what both are run over, once for each layer; the first `FEW` of the calibration data will do.
        record: takes a line about each layer.
        progress: shows how far it is.

    Returns:
        What was added, by layer; layers that were left alone are not there.
    """
    made, weights = {}, {point.layer: point for point in points}
    wanted = _look(view, weights.values(), items)
    for layer in weights:
        if layer not in wanted:
            _leave(record, layer, "no calibration sample reached this layer")
    ordered = list(wanted.items())  # as they ran: what comes before a layer is right when its turn comes
    for layer, outputs in (progress or Progress()).track(ordered, total=len(ordered), label="biases"):
        point = weights[layer]
        means = outputs.against(_look(twin, [point], items).get(layer, _Outputs()))
        problem = BiasProblem(
            view.read(point), twin.read(point), point.groups, outputs=means.get(False),
            held_out_outputs=means.get(True), mean_square=outputs.mean_square, name=layer,
        )  # fmt: skip
        amount = _shift(twin, layer, solver, problem, record)
        if amount is not None:
            made[layer] = amount
    return made


@dataclass
class _Outputs:
    """Sums over one layer's output by channel: of items that teach (False), and of those kept aside (True)."""

    sums: dict[bool, dict[str, Tensor]] = field(default_factory=dict)

    def take(self, found: Mapping[str, Tensor], item: int) -> None:
        before = self.sums.get(is_held_out(item))
        known = {name: found[name] for name in (SUM, SQUARE, COUNT)}
        self.sums[is_held_out(item)] = known if before is None else {n: before[n] + x for n, x in known.items()}

    def against(self, other: _Outputs) -> dict[bool, OutputMeans]:
        """The means of the float model, which this is of, beside those of the quantized one."""
        both = {aside: (mine, other.sums[aside]) for aside, mine in self.sums.items() if aside in other.sums}
        return {aside: OutputMeans(*(each[SUM] / each[COUNT] for each in pair)) for aside, pair in both.items()}

    @property
    def mean_square(self) -> Tensor:
        """E[y²] by channel."""
        return torch.stack([each[SQUARE] / each[COUNT] for each in self.sums.values()]).mean(0)


def _look(view: ModelView, points: Iterable[Point], items: Sequence[Item]) -> dict[str, _Outputs]:
    """What the layers of some weights give, by layer, in the order in which items reached them."""
    seen: dict[str, _Outputs] = {}

    def watch(layer: str) -> Watch:
        def take(found: Mapping[str, Tensor], item: int) -> None:
            seen.setdefault(layer, _Outputs()).take(found, item)

        return Watch(frozenset({SUM, SQUARE, COUNT}), take)

    view.run(items, {Point(p.layer, Role.output, p.op): watch(p.layer) for p in points})
    return seen


def _shift(view: ModelView, layer: str, solver: Algorithm, problem: BiasProblem, record: Record) -> Tensor | None:
    """Shift a layer, say so, and return by how much."""
    found = solver.solve(problem)
    facts: dict[str, Any] = {"algorithm": solver.name, **found.facts}
    reason = str(facts.pop("reason", "every channel is nearer to its mean"))
    if found.amount is None:
        _leave(record, layer, reason, **facts)
        return None
    try:
        view.shift(layer, found.amount)
    except UsageError as error:
        _leave(record, layer, error.what, **facts)
        return None
    record.note("bias-corrected", reason, where=layer, **facts)
    return found.amount


def _leave(record: Record, layer: str, reason: str, **facts: Any) -> None:
    record.note("bias-not-corrected", reason, where=layer, **facts)
