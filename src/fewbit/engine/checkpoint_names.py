# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a checkpoint are the weights of a plan: transformers renames some, and stacks experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from fewbit.engine.checkpoint_pieces import Weight
from fewbit.engine.plan import WeightPlan
from fewbit.errors import UsageError
from fewbit.exporters._checkpoint_names import in_checkpoint
from fewbit.exporters._compressed_experts import cut_stack
from fewbit.modules.checkpoint_files import Place
from fewbit.modules.tensor_file import Entry


class NeedsModel(UsageError):
    """What cannot be done file to file, and can with the model opened.

    Args:
        what: what was found, in one sentence.
        where: the folder or the tensor.
        expected: what would have been right.
    """

    def __init__(self, what: str, *, where: object = None, expected: object = None):
        try_ = "open the model: compress_weights(model, …) takes any that transformers opens"
        super().__init__(what, where=where, expected=expected, try_=try_)


def find_weights(model: Any, weights: Sequence[WeightPlan], tensors: Mapping[str, Place]) -> dict[str, Weight]:
    """The weights of a plan by their names in the files.

    Args:
        model: of stand-ins.
        weights: of the plan.
        tensors: of the files.

    Raises:
        NeedsModel: weights that the files do not have as the model has them, all of them.
    """
    own = {w.point.name: _parameter(model, w) for w in weights}
    later = [Entry(name, each.dtype, tuple(each.shape), each.detach) for name, each in own.items()]
    names, _ = in_checkpoint(model, later, [])
    found, faults = {}, []
    for planned in weights:
        name = planned.point.name
        for stored, shape in _stored(model, planned, names[name]):
            place = tensors.get(stored)
            if place is None or place.shape != shape or place.dtype is not own[name].dtype:
                faults.append(stored)
            else:
                found[stored] = Weight(stored, place, planned)
    refuse_missing(faults, tensors)
    return found


def refuse_missing(names: Sequence[str], tensors: Mapping[str, Place]) -> None:
    """Refuse files that are not as transformers would write them today.

    Raises:
        NeedsModel: there are names of tensors that are not there, or not as the model has them.
    """
    if not names:
        return
    shown = ", ".join(_described(name, tensors) for name in names[:4])
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    raise NeedsModel(
        f"{len(names)} tensors are not in the files as the model has them: {shown}{more}",
        where=next(iter(tensors.values())).path.parent if tensors else None,
        expected="names, dtypes and shapes as model.save_pretrained() writes them",
    )


def _stored(model: Any, planned: WeightPlan, name: str | None) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors that a weight is in the files; none that are there if codes could not follow."""
    point, block = planned.point, planned.block
    if name is not None and tuple(_parameter(model, planned).shape) == point.shape and point.stack == 0:
        yield name, point.shape
        return
    # The scales of a stack must belong to rows: gate and up are one tensor in the model and two in the files.
    by_rows = block[:2] == (1, 1) and not planned.grid.two_level
    rows = cut_stack(model, point.name, point.shape) if point.stack == 1 and len(point.shape) == 3 and by_rows else None
    if rows is None:
        yield point.name, ()
    for part in rows or ():
        yield f"{part.layer}.weight", (part.stop - part.start, point.shape[2])


def _parameter(model: nn.Module, planned: WeightPlan) -> nn.Parameter:
    return model.get_parameter(planned.point.name)


def _described(name: str, tensors: Mapping[str, Place]) -> str:
    place = tensors.get(name)
    return name if place is None else f"{name} ({str(place.dtype).removeprefix('torch.')} {list(place.shape)})"
