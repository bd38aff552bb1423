# SPDX-License-Identifier: Apache-2.0
"""The stream of a model, found by running: who adds to it, who reads it, and whether all of them can be turned.

The flow of one forward says from which layers what each layer reads comes. Layers that read of the same ones belong
together, and the largest such circle with norms in it is the stream. That nothing but sums lies between them is not
looked at: it shows in the answers when the stream is turned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

from torch import Tensor, nn

from fewbit.backends.eager.calling import Item, on_device
from fewbit.backends.eager.catalogue import Catalogue, Layer
from fewbit.backends.eager.guest import guest
from fewbit.backends.eager.heads import find_heads
from fewbit.backends.eager.norms import lets_through
from fewbit.backends.eager.slots import Slot
from fewbit.backends.eager.structure import traced
from fewbit.backends.eager.tracing import Trace, Visit, steps
from fewbit.backends.eager.trials import Setting
from fewbit.errors import UsageError
from fewbit.model.ops import EMBEDDING, EXPERTS, LINEAR
from fewbit.model.points import Role
from fewbit.model.streaming import Stream
from fewbit.model.structure import Link


def find_stream(model: nn.Module, found: Catalogue, item: Item, links: Sequence[Link]) -> Stream:
    """The stream of a model.

    Args:
        model: the model.
        found: its catalogue.
        item: what it is called with.
        links: of the model, among which those of attention are looked for.

    Raises:
        UsageError: no stream, or one that cannot be turned; with every reason.
    """
    layers = steps(found)
    with guest(model):
        used, seen = traced(model, layers, on_device(model, item), every=True)
        stream = _Circle(layers, seen).stream()
        heads = find_heads(Setting(model, layers, used, seen), links)
    return Stream(stream.width, stream.writers, stream.readers, stream.norms, stream.centred, heads)


def output_slots(layer: Layer, width: int) -> tuple[Slot, ...]:
    """The parameters of a layer that make its output of a width; none if that is not known."""
    shapes = {slot: tuple(slot.ours(_own(layer, slot)).shape) for slot in layer.slots}
    if layer.op is EMBEDDING:
        return tuple(slot for slot, shape in shapes.items() if shape[-1] == width)
    if layer.op is LINEAR:
        return layer.slots if all(shape[0] == width for shape in shapes.values()) else ()
    if layer.op is not EXPERTS:
        return ()
    last = [slot for slot, shape in shapes.items() if slot.role is Role.weight and not slot.fed and shape[-2] == width]
    names = {f"{slot.tensor}_bias" for slot in last}
    return (*last, *(slot for slot in shapes if slot.tensor in names)) if len(last) == 1 else ()


def _own(layer: Layer, slot: Slot) -> Tensor:
    own = layer.module._parameters[slot.tensor]
    assert own is not None
    return own


class _Circle:
    """Layers that write to, and read from, the same thing."""

    def __init__(self, layers: Mapping[str, Layer], seen: Trace):
        self._layers, self._seen = layers, seen
        pieces = seen.flow.pieces

        def sources(marks: int) -> set[str]:
            return {piece.source for place, piece in enumerate(pieces) if marks >> place & 1}

        self._reads = {name: sources(_union(visits)) for name, visits in seen.visits.items()}
        self._besides = {name: sources(_union(visits, besides=True)) for name, visits in seen.visits.items()}
        self._escaped = sources(seen.escaped)
        self._faults: list[str] = []

    def stream(self) -> Stream:
        """The largest one with norms in it.

        Raises:
            UsageError: it cannot be turned.
        """
        circles = _circles(self._reads)
        affine = self._seen.affine
        writers, readers = max(circles, key=lambda c: len(c[1] & affine.keys()), default=(set[str](), set[str]()))
        norms = [name for name in self._seen.visits if name in readers and name in affine]
        if not norms:
            raise _cannot(["no norm reads what other layers add up"])
        width = self._width(norms[0])
        # A gate of one channel multiplies all others alike: it has a part in the stream, but nothing to be turned.
        written = tuple(name for name in self._seen.visits if name in writers and not self._is_gate(name))
        for name in written:
            self._check_writer(name, width)
        by_norm = {name: self._behind(name, width) for name in norms}
        plain = tuple(name for name in self._seen.visits if name in readers and name not in affine)
        for name in plain:
            self._check_reader(name, width, writers)
        if self._faults:
            raise _cannot(self._faults)
        centred = self._centred(norms)
        return Stream(width, written, plain, by_norm, centred)

    def _is_gate(self, name: str) -> bool:
        layer = self._layers[name]
        return layer.op is LINEAR and _all_floats(layer) and bool(output_slots(layer, 1))

    def _width(self, norm: str) -> int:
        own = self._layers[norm].module._parameters[self._seen.affine[norm].weight]
        assert own is not None
        return own.numel()

    def _check_writer(self, name: str, width: int) -> None:
        layer = self._layers[name]
        if name in self._seen.affine:
            self._faults.append(f"{name} is a norm whose output is added up: its gains have no weights to go into")
        elif not _all_floats(layer) or not output_slots(layer, width):
            kind = type(layer.module).__name__
            self._faults.append(f"{name} ({kind}) adds to it, and has no float matrix with {width} outputs")
        if name in self._escaped:
            self._faults.append(f"the model returns what {name} adds to, as it is")
        aside = [other for other, sources in self._besides.items() if name in sources]
        if aside:
            self._faults.append(f"{', '.join(aside)} takes what {name} adds to as another argument")

    def _behind(self, norm: str, width: int) -> tuple[str, ...]:
        """The layers that read what a norm makes."""
        names = tuple(name for name, sources in self._reads.items() if norm in sources)
        if norm in self._escaped or not names:
            self._faults.append(f"the model returns what {norm} makes, which would be turned")
        if any(norm in sources for sources in self._besides.values()):
            self._faults.append(f"a layer takes what {norm} makes as another argument")
        if self._width(norm) != width or self._seen.affine[norm].features != -1:
            self._faults.append(f"{norm} has gains for {self._width(norm)} channels, not for {width}")
        for name in names:
            self._check_reader(name, width, {norm})
        return names

    def _check_reader(self, name: str, width: int, sources: set[str]) -> None:
        layer, visits = self._layers[name], self._seen.visits[name]
        fed = [slot for slot in layer.slots if slot.fed]
        if not fed or not _all_floats(layer) or not all(visit.single for visit in visits):
            self._faults.append(
                f"{name} ({type(layer.module).__name__}) reads it, and not by a float matrix of its own"
            )
        elif any(slot.ours(_own(layer, slot)).shape[slot.stack + 1 :] != (width,) for slot in fed):
            self._faults.append(f"{name} reads it, and has not {width} inputs")
        elif not self._reads[name] <= sources:
            self._faults.append(f"{name} reads {', '.join(sorted(self._reads[name] - sources))} too")

    def _centred(self, norms: Sequence[str]) -> bool:
        """Whether some norm lets only those turns through that keep the mean."""

        def stops(name: str, *, centred: bool) -> bool:
            call = self._seen.visits[name][0].call
            return not lets_through(self._layers[name], self._seen.affine[name], call, centred=centred)

        stiff = [name for name in norms if stops(name, centred=False)]
        lost = [name for name in stiff if stops(name, centred=True)]
        if lost:
            raise _cannot([f"{name} is a norm that is not the same in every direction" for name in lost])
        return bool(stiff)


def _union(visits: Sequence[Visit], *, besides: bool = False) -> int:
    marks = 0
    for visit in visits:
        marks |= visit.reads_besides if besides else visit.reads
    return marks


def _circles(reads: Mapping[str, set[str]]) -> list[tuple[set[str], set[str]]]:
    """Writers and readers that belong together: whoever reads of two writers makes them one."""
    found: list[tuple[set[str], set[str]]] = []
    for name, sources in reads.items():
        if not sources:
            continue
        mine, others = (set(sources), {name}), []
        for circle in found:
            if circle[0].isdisjoint(sources):
                others.append(circle)
            else:
                mine = mine[0] | circle[0], mine[1] | circle[1]
        found = [*others, mine]
    return found


def _all_floats(layer: Layer) -> bool:
    return all(layer.module._parameters.get(slot.tensor) is not None for slot in layer.slots)


def _cannot(faults: Sequence[str]) -> UsageError:
    shown = [f"{number}. {fault}" for number, fault in zip(count(1), faults[:8])]
    shown += [f"and {len(faults) - 8} more"] if len(faults) > 8 else []
    return UsageError(
        "the state that goes through the model cannot be rotated: " + "; ".join(shown),
        where="rotation",
        expected="layers that add to one state, and norms before all that read it, up to a head",
        try_="leave rotation out; smooth_quant evens channels out as well",
    )
