# SPDX-License-Identifier: Apache-2.0
"""Families of channels are checked by running the model: rescaled by random factors, it has to compute the same.

The analysis sees one example shape and one path through the model's code; what it missed shows on another sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fewbit.graph.channels import ChannelFamily
from fewbit.graph.edits import Edit, ScaleChannels
from fewbit.graph.scaling import scale_edits
from fewbit.rng import generator

Run = Callable[[Sequence[Edit]], Sequence[np.ndarray]]
"""All outputs of a model with some edits, on a sample that the analysis has not seen."""


@dataclass(frozen=True)
class RejectedFamily:
    """A family that changed the outputs.

    Args:
        family: with all its uses.
        difference: largest difference of an output, relative to the largest output.
    """

    family: ChannelFamily
    difference: float


def check_families(
    families: Sequence[ChannelFamily], run: Run, *, tolerance: float = 1e-5, seed: int = 0
) -> tuple[tuple[ChannelFamily, ...], tuple[RejectedFamily, ...]]:
    """Rescale families by random factors and compare the outputs with those of the unchanged model.

    Two runs if all is well; a family that is wrong is found by halving. The factors are powers of two, which every
    float type multiplies exactly, so that models in half precision are checked as well as others.

    Args:
        families: from `scale_families`.
        run: runs the model with edits; it must be deterministic, and must not change the model.
        tolerance: largest relative difference; raise it to 2e-2 for half-precision models whose norms add to their
            weight, which is not exact.
        seed: of the factors.

    Returns:
        The families to use, and those to leave alone.
    """
    random = generator(seed)
    trials = [scale_edits(family, 2.0 ** random.choice([-3, -2, -1, 1, 2, 3], family.size)) for family in families]
    return _by_halves(families, trials, (), run, tolerance)


def check_removable(
    families: Sequence[ChannelFamily], run: Run, *, tolerance: float = 1e-5, seed: int = 0
) -> tuple[tuple[ChannelFamily, ...], tuple[RejectedFamily, ...]]:
    """Zero the weights that read some groups; what the groups' own weights are must not matter then.

    Args:
        families: from `prune_families`, without `inexact` nodes, which would count the channels still.
        run: runs the model with edits; it must be deterministic, and must not change the model.
        tolerance: largest relative difference.
        seed: of the choice of groups.

    Returns:
        The families to use, and those to leave alone.
    """
    random = generator(seed)
    silent, trials = list[Edit](), list[list[Edit]]()
    for family in families:
        chosen = np.append(random.random(family.size) < 0.5, False)  # index -1 is an element of another group
        trial = list[Edit]()
        for use in family.uses:
            factors = np.where(chosen[use.index], 0.0 if use.role == "in" else 3.0, 1.0)
            (silent if use.role == "in" else trial).append(ScaleChannels(use.constant, factors, use.view, use.offset))
        trials.append(trial)
    return _by_halves(families, trials, silent, run, tolerance)


def _by_halves(
    families: Sequence[ChannelFamily],
    trials: Sequence[Sequence[Edit]],
    always: Sequence[Edit],
    run: Run,
    tolerance: float,
) -> tuple[tuple[ChannelFamily, ...], tuple[RejectedFamily, ...]]:
    """Apply all trials at once, and halves of them where the outputs change."""
    if not families:
        return (), ()
    reference = [np.asarray(output) for output in run(always)]
    accepted, rejected = list[int](), dict[int, RejectedFamily]()
    pending = [(0, len(families))]
    while pending:
        start, stop = pending.pop()
        edits = [*always, *(edit for trial in trials[start:stop] for edit in trial)]
        difference = relative_difference(run(edits), reference)
        if difference <= tolerance:
            accepted += range(start, stop)
        elif stop - start == 1:
            rejected[start] = RejectedFamily(families[start], difference)
        else:
            middle = (start + stop) // 2
            pending += [(start, middle), (middle, stop)]
    return tuple(families[number] for number in sorted(accepted)), tuple(rejected[n] for n in sorted(rejected))


def relative_difference(outputs: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> float:
    """The largest difference of any output, relative to the largest finite value of that output; 0 if all are equal.

    >>> relative_difference([np.array([2.0, 4.1])], [np.array([2.0, 4.0])])
    0.025
    """
    worst = 0.0
    for output, expected in zip(outputs, reference, strict=True):
        output, expected = np.asarray(output), np.asarray(expected)
        if output.shape != expected.shape:
            return float("inf")
        if not np.issubdtype(expected.dtype, np.floating):
            worst = max(worst, float((output != expected).mean()) if output.size else 0.0)
            continue
        equal = (output == expected) | (np.isnan(output) & np.isnan(expected))
        if equal.all():
            continue
        finite = np.abs(expected[np.isfinite(expected)])
        largest = float(finite.max()) if finite.size else 0.0
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.where(equal, 0, np.abs(output.astype(np.float64) - expected))
        worst = max(worst, float(np.where(np.isnan(error), np.inf, error).max()) / max(largest, 1e-30))
    return round(worst, 12)
