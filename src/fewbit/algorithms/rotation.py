# SPDX-License-Identifier: Apache-2.0
"""Rotation: Hadamard matrices spread what stands out in some channels over all, for activations of few bits.

QuaRot (arXiv 2404.00456): a state that layers add to and read from may be multiplied with an orthogonal matrix, if all
who write to it are multiplied with it too and all who read from it with its transpose. So may the values of each head
of an attention. Both go into the weights: nothing is left to be done when the model runs.

Groups that share a power of two do not like their large elements spread over all the others (arXiv 2511.04214): there
only the channels of a group are mixed. Groups as small as NVFP4's are left alone: they hold what stands out by
themselves (arXiv 2509.23202).
"""

from __future__ import annotations

from fewbit.algorithms._base import Rotation, StreamProblem
from fewbit.algorithms._orthogonal import Orthogonal
from fewbit.algorithms._parallel import one_thread
from fewbit.errors import UsageError
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.grid import Grid
from fewbit.numerics.scales import is_power

STAGE = "rotate"
NEEDS: tuple[str, ...] = ()


@one_thread()
def solve(problem: StreamProblem, *, block: int | None = None, seed: int = 0) -> Rotation:
    """Randomized Hadamard matrices for a stream and for heads of values.

    Args:
        problem: their sizes, and the grids that what they carry is rounded to.
        block: how many channels are mixed with one another; by default all, or those of an MX group.
        seed: of the random signs.

    Raises:
        UsageError: a size below one.

    >>> solve(StreamProblem(576, heads=[64])).facts
    {'block': 576, 'heads': {'64': 64}}
    """
    problem.check()
    if block is not None and block < 1:
        raise UsageError(f"block={block!r}", where="block", expected="a number of channels, such as 32")
    if problem.grids and all(grid.two_level for grid in problem.grids) and block is None:
        return Rotation(facts={"reason": "small groups with scales under a scale hold what stands out by themselves"})
    block = block or min(map(_mixed, problem.grids), default=problem.width)
    stream = Orthogonal.spreading(problem.width, min(block, problem.width), centred=problem.centred, seed=seed)
    heads = {size: Orthogonal.spreading(size, min(block, size), seed=seed + 1) for size in sorted(set(problem.heads))}
    return Rotation(
        stream, heads, {"block": stream.block, "heads": {str(size): turn.block for size, turn in heads.items()}}
    )


def _mixed(grid: Grid) -> int:
    """How many channels may be mixed for a grid."""
    grouped = grid.granularity is QSchemeType.per_group and grid.group_size > 0
    return grid.group_size if grouped and is_power(grid.scale_type) else 1 << 62
