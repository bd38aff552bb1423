# SPDX-License-Identifier: Apache-2.0
"""What taking channels out costs, from calibration samples, and weights that make up for it where that helps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.backends.eager.copying import copied
from fewbit.data.dataset import Dataset
from fewbit.engine.collect import is_held_out
from fewbit.engine.item_places import ItemPlaces
from fewbit.model.view import Item, ModelView
from fewbit.record import Record
from fewbit.sparsity.job import Job
from fewbit.sparsity.shrinking.choosing import choose
from fewbit.sparsity.shrinking.cutting import put
from fewbit.sparsity.shrinking.groups import Group
from fewbit.sparsity.shrinking.moments import WIDEST, collect
from fewbit.sparsity.shrinking.proving import answers
from fewbit.sparsity.shrinking.reading import Reader
from fewbit.sparsity.shrinking.tracing import named_tensors

_ROOM = 4 * 2**30
"""Bytes of second moments that are kept at a time; layers beyond that have a pass over the samples of their own."""

_JUDGES = 16


class Costs:
    """Second moments of the weights that read channels, in as many passes over the samples as they need room.

    Args:
        view: of the model.
        places: to say which sample is at fault.
        data: the samples.
        job: takes lines about what was measured, and shows how far it is.
    """

    def __init__(self, view: ModelView, places: ItemPlaces, data: Dataset, job: Job) -> None:
        self._view, self._places, self._data, self._job = view, places, data, job
        self._model: nn.Module = view.native()
        self.refits: dict[str, tuple[Tensor, Tensor | None]] = {}
        self.axes: dict[str, int] = {}

    def items(self) -> Iterator[Item]:
        """The samples as the model takes them, from the first."""
        fed = self._places.inputs(self._data, self._view.signature(), 1)
        return self._job.progress.track(fed, total=self._data.sample_count, label="shrink")

    def choose(self, groups: Sequence[Group], counts: Sequence[int], score: str) -> list[list[int]]:
        """The classes that go, of each group; `refits` are the weights that make up for them."""
        tensors, alone = named_tensors(self._model), self._alone()
        found = []
        for start, stop in self._passes(groups) if score == "error" else [(0, len(groups))]:
            batch = groups[start:stop]
            readers = self._readers(batch, tensors) if score == "error" else {}
            for group, count in zip(batch, counts[start:stop], strict=True):
                if score == "error" and not any(member.tensor in readers for member in group.readers):
                    self._job.record.note("by-magnitude", "no sample shows what reads its channels", where=group.name)
                found.append(choose(group, count, readers, tensors))
            gone = [each for classes in found for each in classes]
            for name, reader in readers.items():
                reader.take(gone)
                if name in alone:
                    self.refits[name] = reader.refitted()
        return found

    def _alone(self) -> set[str]:
        """Tensors that one module alone uses: another use of it would change too."""
        names = dict(self._model.named_parameters(remove_duplicate=False))
        uses = Counter(id(tensor) for tensor in names.values())
        return {name for name, tensor in names.items() if uses[id(tensor)] == 1}

    def _passes(self, groups: Sequence[Group]) -> list[tuple[int, int]]:
        bounds, used = [0], 0
        for number, group in enumerate(groups):
            size = sum(8 * min(len(member.classes), WIDEST) ** 2 for member in group.readers)
            if used and used + size > _ROOM:
                bounds.append(number)
                used = 0
            used += size
        return list(zip(bounds, [*bounds[1:], len(groups)], strict=True))

    def _readers(self, groups: Sequence[Group], tensors: dict[str, Tensor]) -> dict[str, Reader]:
        members = {member.tensor: member for group in groups for member in group.readers}
        moments = collect(self._view, {name: len(m.classes) for name, m in members.items()}, self.items())
        found = {}
        for name, seen in moments.items():
            weight = tensors[name].detach().movedim(members[name].axis, 0).to("cpu", torch.float64)
            self.axes[name] = members[name].axis
            found[name] = Reader.of(weight, members[name].classes, seen, has_bias=takes_mean(self._model, name))
        return found


def takes_mean(model: nn.Module, weight: str) -> bool:
    """Whether a bias beside a weight can take the mean of what is gone: not with padding, where nothing comes in."""
    layer: Any = model.get_submodule(weight.rpartition(".")[0])
    if not isinstance(getattr(layer, "bias", None), nn.Parameter):
        return False
    padding = getattr(layer, "padding", 0)
    return padding == "valid" if isinstance(padding, str) else not any(torch.as_tensor(padding).reshape(-1).tolist())


def refitted(model: nn.Module, costs: Costs) -> nn.Module:
    """A copy of a module whose weights make up for channels that are gone: they no longer read them."""
    made = copied(model)
    tensors, new = named_tensors(made), {}
    for name, (weight, shift) in costs.refits.items():
        old = tensors[name]
        new[name] = weight.movedim(0, costs.axes[name]).to(old)
        bias = name.rpartition(".")[0] + ".bias"
        if shift is not None:
            new[bias.lstrip(".")] = (tensors[bias.lstrip(".")].detach().double() + shift.to(old.device)).to(old)
    put(made, new)
    return made


def nearest_to(dense: nn.Module, plain: nn.Module, made_up: nn.Module, costs: Costs, record: Record) -> nn.Module:
    """Of two smaller modules the one whose answers are nearer to those of the dense one, on samples kept aside."""
    aside = list(islice((item for index, item in enumerate(costs.items()) if is_held_out(index)), _JUDGES))
    judges = aside or list(islice(costs.items(), _JUDGES))
    off = [0.0, 0.0]
    for item in judges:
        wanted = answers(dense, item)
        for number, model in enumerate((plain, made_up)):
            pairs = zip(wanted, answers(model, item), strict=True)
            off[number] += sum(float((a.double() - b.double()).square().sum()) for a, b in pairs)
    better = off[1] < off[0]
    how = "kept aside" if aside else "of the calibration itself, too few to keep any aside"
    record.note(
        "compensated" if better else "not-compensated",
        f"weights that make up for what is gone answer {'nearer' if better else 'no nearer'} to the dense model, on "
        f"{len(judges)} samples {how}",
        plain=off[0],
        made_up=off[1],
    )
    return made_up if better else plain
