# SPDX-License-Identifier: Apache-2.0
"""The view of an `nn.Module`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fewbit.backends.eager.affine import Affine
from fewbit.backends.eager.caches import keep_as_codes
from fewbit.backends.eager.calling import Item, call
from fewbit.backends.eager.catalogue import Layer, points_of
from fewbit.backends.eager.copying import copied
from fewbit.backends.eager.gradients import run_gradients
from fewbit.backends.eager.guest import guest
from fewbit.backends.eager.naming import types_of
from fewbit.backends.eager.probing import Seen, own_example, probe, probe_with_own_example
from fewbit.backends.eager.rescaling import checked, divided_outputs, multiplied_inputs, spread
from fewbit.backends.eager.rotating import rotated, untie
from fewbit.backends.eager.running import Run
from fewbit.backends.eager.shifting import shifted_bias
from fewbit.backends.eager.slots import Slot, float_shape
from fewbit.backends.eager.streaming import find_stream
from fewbit.backends.eager.structure import discover
from fewbit.backends.eager.survey import Survey
from fewbit.backends.eager.ties import between, held, identity
from fewbit.backends.eager.tying import tied_layers
from fewbit.backends.eager.walking import EagerWalk, walking
from fewbit.data.tree import flatten
from fewbit.errors import UsageError, nearest
from fewbit.model.ops import CACHE
from fewbit.model.points import Point, Role
from fewbit.model.sensing import Take, Weigh
from fewbit.model.streaming import Stream, Turn
from fewbit.model.structure import Structure
from fewbit.model.watch import Watch
from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.description import parts_of
from fewbit.modules.fast_paths import close_fast_path
from fewbit.modules.quantized import Quantized, clear_weight, float_weight, make_quantized, set_weight
from fewbit.modules.tensor_file import digest as tensor_digest
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.record import Record
from fewbit.schemes.config import Config


class EagerView:
    """A module tree under the verbs of `ModelView`.

    Args:
        model: the module. Looking changes nothing; `write`, `rescale`, `shift` and `quantize` change it in place.
            What else changes the module tree (another layer in the place of one) calls for a new view.
    """

    can = frozenset({"structure", "rescale", "shift", "walk", "gradients", "rotate"})

    def __init__(self, model: nn.Module):
        self._model: nn.Module = getattr(model, "_orig_mod", model)  # what torch.compile wrapped
        self._seen: Seen = {}
        self._affine: dict[str, Affine] = {}
        self._tried_own_example = False
        self._known: Survey | None = None
        self._noted: dict[tuple[str, str], None] = {}

    # looking

    def points(self, match: Callable[[Point], bool] | None = None) -> list[Point]:
        """Every point that matches, in model order."""
        return [point for point in self._survey().points if match is None or match(point)]

    def skipped(self) -> list[tuple[str, str]]:
        """Layers with matrices that cannot be quantized, each with the reason; norms and the like are not listed."""
        return list(self._survey().found.skipped)

    def quantized(self) -> list[str]:
        """Layers that are quantized already."""
        return [name for name, module in self._model.named_modules() if isinstance(module, Quantized)]

    def size(self) -> int:
        """Bytes of all parameters, codes included, shared ones once; those that a kernel repacked as they are saved."""
        tensors: dict[object, Tensor] = {}
        repacked = 0
        for module in self._model.modules():
            if isinstance(module, Quantized) and module.kernel is not None and module.kernel.takes:
                parts = parts_of(module.coded["weight"])
                repacked += sum(parts[part].nbytes for part in module.kernel.takes if part in parts)
            codes = module.kept_buffers() if isinstance(module, Quantized) else ()
            kept = [*module._parameters.values(), *(module._buffers.get(name) for name in codes)]
            tensors.update({identity(tensor): tensor for tensor in kept if tensor is not None and not is_lazy(tensor)})
        return repacked + sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())

    def digest(self) -> str:
        """A hash of every parameter and buffer."""
        found = hashlib.sha256()
        for name, tensor in (*self._model.named_parameters(), *self._model.named_buffers()):
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {tensor_digest(tensor)}".encode())
        return found.hexdigest()

    def layers(self) -> dict[str, tuple[str, ...]]:
        """Every module under each of its names, with its types; the model itself only where it is a layer."""
        return {name: types_of(module) for name, module in self._look().named.items()}

    def types(self, layer: str) -> tuple[str, ...]:
        """The names of a layer's class and its base classes, without those that quantizing brings in."""
        named = self._look().named
        if layer not in named:
            raise _no_layer(layer, named)
        return types_of(named[layer])

    @property
    def notes(self) -> list[tuple[str, str]]:
        """What runs showed that is worth knowing, as `(layer, what)`."""
        return list(self._noted)

    def probe(self, item: Item) -> None:
        """Learn from one item how layers of unknown class use their parameters; `points` knows them from then on."""
        found = self._look().found
        if found.unknown:
            self._seen |= probe(self._model, found, item)
            self._known = None

    def read(self, point: Point) -> Tensor:
        """A weight or bias in fewbit's layout; not to be changed."""
        layer, slot = self._slot(point)
        if isinstance(layer.module, Quantized) and point.tensor in layer.module.coded:
            return slot.ours(float_weight(layer.module, point.tensor))
        parameter = layer.module._parameters[point.tensor]
        assert parameter is not None
        return slot.ours(parameter.detach())

    # running

    def run(self, items: Iterable[Item], watch: Mapping[Point, Watch]) -> int:
        """Run the model over items, tell what was asked about each watched activation, return the number of items."""
        try:
            return Run(self._model, self._survey().found, watch, self._note).over(items)
        finally:
            self._known = None  # a run gives lazy modules their weights

    def structure(self, item: Item) -> Structure:
        """What one item shows of who feeds whom."""
        self.probe(item)
        try:
            found, affine = discover(self._model, self._look().found, item)
        finally:
            self._known = None
        self._affine |= affine
        return found

    def stream(self, item: Item) -> Stream:
        """The stream of the model; see `RotatingView`."""
        links = self.structure(item).links
        return find_stream(self._model, self._look().found, item, links)

    def walk(self, items: Sequence[Item], **how: Any) -> AbstractContextManager[EagerWalk]:
        """Begin a walk through the model, and through what it is now beside it; see `WalkingView.walk`."""
        return walking(self._model, self._survey().found, items, **how)

    def gradients(self, points: Sequence[Point], items: Iterable[Item], weigh: Weigh, take: Take) -> None:
        """For each item, the gradient of its weighed answers by each weight; of a copy, whose weights are these."""
        twin = self.copy()
        run_gradients(twin._model, twin._survey().found, points, items, weigh, take)

    def tied(self, item: Item | None) -> list[tuple[str, ...]]:
        """Layers that runtimes make one of: those that read the same tensor, all experts."""
        if item is None and (item := own_example(self._model)) is None:
            return []
        return tied_layers(self._model, self._survey().found, item)

    # changing

    def write(self, point: Point, tensor: Tensor) -> None:
        """Replace a weight or bias, for every layer that uses it."""
        layer, slot = self._slot(point)
        _, dtype = float_shape(layer.module, point.tensor)
        if tuple(tensor.shape) != point.shape:
            raise UsageError(f"a tensor of shape {tuple(tensor.shape)}", where=point.name, expected=point.shape)
        self._put(layer, point.tensor, slot.own(tensor.detach()).to(dtype).contiguous())

    def rescale(self, producer: str, consumers: Sequence[str], channels: Sequence[int], factors: Tensor) -> None:
        """Divide the producer's output channels by `factors` and multiply the consumers' inputs by them."""
        layer, affine = self._layer(producer), self._affine.get(producer)
        if affine is None and layer.op is None:
            raise UsageError(
                f"how {producer} scales its output is not known",
                where=producer,
                expected="a layer that a link of structure(item) names as producer",
                try_="view.structure(item) first",
            )
        channels = tuple(channels)
        factors = checked(producer, channels, factors)
        self._refuse_codes([producer, *consumers])
        changed = {producer: divided_outputs(layer, affine, factors)}
        for name in consumers:
            changed[name] = multiplied_inputs(self._layer(name), spread(channels, factors))
        for name, tensors in changed.items():
            for tensor, value in tensors.items():
                self._put(self._layer(name), tensor, value)

    def rotate(self, stream: Stream, by: Turn, heads: Mapping[int, Turn]) -> tuple[str, ...]:
        """Turn a stream and the heads beside it; the weights that are one tensor with others no more."""
        layers = self._look().found.layers
        changed = rotated(layers, self._affine, stream, by, heads)
        parted = untie(self._model, layers, changed)
        for (name, tensor), value in changed.items():
            module = layers[name].module
            before = module._parameters[tensor]
            setattr(module, tensor, nn.Parameter(value, before is not None and before.requires_grad))
        self._known = None
        return parted

    def shift(self, layer: str, amount: Tensor) -> None:
        """Add an amount `[out]` to the output channels of a layer: to its bias, which is made where there is none."""
        found = self._layer(layer)
        found.module.bias = shifted_bias(found, amount)  # its own from now on, if another layer used it too
        self._known = None

    def quantize(self, point: Point, how: QTensor | QParams | Grid) -> None:
        """Keep a weight as these codes; put an activation on a grid, with fixed scales or with scales of each call."""
        if point.role in (Role.weight, Role.bias):
            self._keep_codes(point, how)
        elif point.role in (Role.input, Role.output) and isinstance(how, QParams | Grid):
            layer = self._layer(point.layer)
            if not any(p.role is point.role for p in points_of(layer, {})):
                raise UsageError(
                    f"{point.name} cannot be quantized: nothing calls this layer's forward", where=point.layer
                )
            fixed = how if isinstance(how, QParams) else None
            quantizer = ActivationQuantizer(how.grid if isinstance(how, QParams) else how, layer.features(), fixed)
            place = next(iter(layer.module.parameters()), next(iter(layer.module.buffers()), torch.empty(0))).device
            setattr(make_quantized(layer.module), f"{point.role.value}_quantizer", quantizer.to(place))
            self._close_fast_paths(layer.module)
        elif point.op is CACHE and isinstance(how, QParams | Grid):
            index = next(index for index, name in self._survey().cache.items() if name == point.layer)
            keep_as_codes(self._model, index, point, how)
        else:
            raise UsageError(
                f"{point.name} cannot be quantized by a {type(how).__name__}",
                expected="codes for a weight, scales or a grid for an activation",
            )

    def signature(self) -> nn.Module:
        """The module: its forward says what it takes."""
        return self._model

    def sign(self, config: Config, record: Record) -> None:
        """Leave configuration and record with the module, as attributes."""
        self._model.fewbit_config, self._model.fewbit_record = config, record  # type: ignore[assignment]

    def answers(self, items: Iterable[Item]) -> Iterator[list[Tensor]]:
        """The tensors that the model returns for each item; complex ones are left out."""
        with guest(self._model):
            for index, item in enumerate(items):
                found = flatten(call(self._model, item, index))
                yield [leaf.detach().cpu() for _, leaf in found if isinstance(leaf, Tensor) and not leaf.is_complex()]

    def copy(self) -> EagerView:
        """A view of a copy: changing it leaves this one's model alone. Weights share their memory until changed."""
        twin = EagerView(copied(self._model))
        twin._seen, twin._affine = dict(self._seen), dict(self._affine)
        twin._tried_own_example = self._tried_own_example
        return twin

    def native(self) -> nn.Module:
        """The module itself."""
        return self._model

    # inside

    def _look(self) -> Survey:
        """The survey, without a run of the model."""
        if self._known is None:
            self._known = Survey(self._model, self._seen)
        return self._known

    def _survey(self) -> Survey:
        """The survey; layers that only a run can explain are tried with the model's own example, if it has one."""
        if not self._tried_own_example and self._look().has_unknown_stacks:
            self._tried_own_example = True
            self._seen |= probe_with_own_example(self._model, self._look().found)
            self._known = None
        return self._look()

    def _layer(self, name: str) -> Layer:
        found = self._survey().found.layers
        if name not in found:
            raise _no_layer(name, found)
        return found[name]

    def _slot(self, point: Point) -> tuple[Layer, Slot]:
        layer = self._layer(point.layer)
        slot = layer.slot(point.tensor)
        if slot is None:
            raise UsageError(f"{point.name} is no weight or bias of this model", where=point.layer)
        return layer, slot

    def _users(self, layer: Layer, tensor: str) -> list[tuple[nn.Module, str, tuple[int, ...]]]:
        """Everyone who uses a tensor: the module, its name there, and how its axes lie there."""
        mine = held(layer.module).get(tensor)
        if mine is None:
            raise UsageError(
                f"{layer.name} is frozen: a kernel holds its weight", where=layer.name, try_="change it before freeze"
            )
        key = (id(layer.module), tensor)
        if key not in self._survey().ties:  # a kernel held it then
            self._known = None
        users = self._survey().ties[key].users(mine)
        return [(module, name, _turned(layer.module, tensor, module, name)) for module, name in users]

    def _close_fast_paths(self, module: nn.Module) -> None:
        for outer in self._survey().fast_paths.get(id(module), ()):
            close_fast_path(outer)

    def _put(self, layer: Layer, tensor: str, own: Tensor) -> None:
        made: dict[tuple[int, ...], nn.Parameter] = {}
        for module, name, axes in self._users(layer, tensor):
            before = module._parameters.get(name)
            trains = before is not None and before.requires_grad
            if axes not in made:
                made[axes] = nn.Parameter(own.permute(axes), trains)
            if isinstance(module, Quantized) and name in module.coded:
                clear_weight(module, name, made[axes])
            else:
                setattr(module, name, made[axes])

    def _keep_codes(self, point: Point, how: QTensor | QParams | Grid) -> None:
        layer, slot = self._slot(point)
        if not isinstance(how, QTensor) or how.shape != point.shape:
            raise UsageError(
                f"{point.name} cannot be kept as this {type(how).__name__}",
                where=point.name,
                expected=f"a QTensor of shape {point.shape}",
            )
        for module, name, axes in self._users(layer, point.tensor):
            turned = tuple(slot.axes[axis] for axis in axes)
            set_weight(module, name, how, turned, slot.split)
            self._close_fast_paths(module)

    def _refuse_codes(self, names: list[str]) -> None:
        for name in names:
            module = self._layer(name).module
            if isinstance(module, Quantized) and module.coded:
                raise UsageError(
                    f"{name} is quantized already", where=name, expected="float weights", try_="rescale first"
                )

    def _note(self, layer: str, what: str) -> None:
        self._noted[layer, what] = None


def _no_layer(name: str, known: Iterable[str]) -> UsageError:
    return UsageError(f"the model has no layer {name!r}", expected=nearest(name, known)[:300])


def _turned(one: nn.Module, name: str, other: nn.Module, other_name: str) -> tuple[int, ...]:
    """How the axes of a shared tensor in one module lie in another: `other = one.permute(axes)`."""
    if isinstance(one, Quantized) and isinstance(other, Quantized) and name in one.coded:
        mine, theirs = one.coded[name].axes, other.coded[other_name].axes
        return tuple(mine.index(axis) for axis in theirs)
    return between(held(one)[name], held(other)[other_name])
