# SPDX-License-Identifier: Apache-2.0
"""Which algorithm prunes which weight, as far as data, the kind of layer and memory allow.

Second moments of all inputs are at hand on a walk, which linear layers go along block by block; a network of
convolutions is settled from one pass, and has those of all layers in memory at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from fewbit.algorithms._members import Algorithm, algorithm
from fewbit.model.ops import CONV, CONV_TRANSPOSE
from fewbit.model.points import Point
from fewbit.model.view import ModelView
from fewbit.sparsity.pruning.settings import Settings

_ALL, _ONE = 4 << 30, 1 << 30  # bytes of second moments that may be held at once, and of one layer's
_BYTES = 16  # of one entry, for items that teach and those kept aside
_WIDE = 2500  # weights of an output: beyond these the better algorithm takes minutes
_CONVS = (CONV, CONV_TRANSPOSE)
_SLOW, _BEST, _NEXT, _LEAST = "alps", "stepwise", "wanda", "magnitude"
_SEEN = {"apart": 0.0, "by_row": False}  # samples of pictures are believed: those to come are like them


@dataclass(frozen=True)
class Solver:
    """How one weight is pruned.

    Args:
        algorithm: the one.
        parameters: of it.
        why: why it is another than that of the other weights; none if it is the same.
    """

    algorithm: Algorithm
    parameters: dict[str, Any]
    why: str | None = None


def usual(view: ModelView, points: Sequence[Point], settings: Settings, *, data: bool) -> tuple[str, str]:
    """The name of the algorithm for a model, and why it is this one."""
    if settings.algorithm is not None:
        return settings.algorithm, "as the settings say"
    if settings.scope == "global":
        return _LEAST, "one threshold over all layers compares magnitudes"
    if not data:
        return _LEAST, "there is no calibration data"
    if _is_walked(view, points) and not _of_pictures(points):
        return _BEST, "there is calibration data, from which second moments follow"
    return _SLOW, "nothing else keeps so near to what the samples show"


def solvers(view: ModelView, points: Sequence[Point], settings: Settings, *, data: bool) -> list[Solver]:
    """How each weight is pruned.

    Args:
        view: of the model.
        points: the weights.
        settings: of the stage.
        data: whether there are samples.
    """
    name, _ = usual(view, points, settings, data=data)
    own = Solver(algorithm(name, "prune"), dict(settings.parameters))
    found = [own] * len(points)
    if "gram" in own.algorithm.needs:
        lesser = algorithm(_NEXT, "prune")
        reasons = _why_no_moments(view, points)
        found = [own if reason is None else Solver(lesser, {}, reason) for reason in reasons]
    if name == _SLOW and settings.algorithm is None:
        swift = Solver(algorithm(_BEST, "prune"), _SEEN, f"{_SLOW} takes long for a layer that is so wide")
        found = [swift if each is own and _places(p) > _WIDE else each for p, each in zip(points, found)]
    hidden = _hidden(view) if own.algorithm.needs else {}
    least = algorithm(_LEAST, "prune")
    return [Solver(least, {}, hidden[p.layer]) if p.layer in hidden else each for p, each in zip(points, found)]


def moments_fit(points: Sequence[Point]) -> bool:
    """Whether second moments of what all these layers read may be held in memory at once."""
    return sum(map(_size, points)) <= _ALL


def _hidden(view: Any) -> dict[str, str]:
    """Layers of a graph whose inputs nobody sees, each with the reason."""
    return view.hidden() if "place" in view.can else {}


def _why_no_moments(view: ModelView, points: Sequence[Point]) -> list[str | None]:
    """Of each weight, why there are no second moments that fit it; none if there are."""
    walked = _is_walked(view, points)
    checks: list[Callable[[Point], str | None]] = [_grouped]
    checks.append(_not_on_a_walk if walked else _too_large)
    found = [next((why for check in checks if (why := check(point)) is not None), None) for point in points]
    if walked:
        return found
    left = _ALL
    for index in sorted(range(len(points)), key=lambda index: _size(points[index])):
        if found[index] is None:
            left -= _size(points[index])
            if left < 0:
                found[index] = "second moments of all layers would take more memory than is given to them"
    return found


def _is_walked(view: ModelView, points: Sequence[Point]) -> bool:
    """Whether a model is walked: not a graph, nor where most of what is pruned are kernels, whose windows one pass over
    the whole model shows."""
    kernels = sum(point.elements for point in points if point.op in _CONVS and prod(point.shape[2:]) > 1)
    return "walk" in view.can and 2 * kernels <= sum(point.elements for point in points)


def _of_pictures(points: Sequence[Point]) -> bool:
    """Whether most of what is pruned are convolutions, pointwise ones too."""
    kernels = sum(point.elements for point in points if point.op in _CONVS)
    return 2 * kernels > sum(point.elements for point in points)


def _grouped(point: Point) -> str | None:
    return "second moments of a grouped convolution are not taken" if point.groups > 1 else None


def _not_on_a_walk(point: Point) -> str | None:
    kernel = point.op in _CONVS and prod(point.shape[2:]) > 1
    return "a walk shows what a layer reads, not the windows of a convolution" if kernel else None


def _too_large(point: Point) -> str | None:
    size = _size(point)
    return f"its second moments would take {size / (1 << 30):.1f} GiB" if size > _ONE else None


def _size(point: Point) -> int:
    return _BYTES * _places(point) ** 2


def _places(point: Point) -> int:
    """How many weights an output has."""
    return prod(point.shape[point.stack + 1 :])
