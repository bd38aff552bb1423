# SPDX-License-Identifier: Apache-2.0
"""The catalogue of a module tree: its layers, what of them can be quantized, and why the rest cannot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fewbit.backends.eager.slots import Slot, float_shape, kind_of, parameter_names, slots_of
from fewbit.backends.eager.ties import Ties, held
from fewbit.model.ops import ATTENTION, EMBEDDING, EXPERTS, Op
from fewbit.model.points import Point, Role
from fewbit.modules.quantized import Quantized

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Layer:
    """One module with parameters of its own.

    Args:
        name: its first name in the tree.
        module: itself.
        op: what it computes; none for classes nobody knows, such as a router or a norm of one's own.
        slots: its parameters that can be quantized or, without `op`, at least rescaled.
        called: whether its forward runs; the output projection inside `nn.MultiheadAttention` is only read.
        inside: whether other layers of the catalogue lie within it.
    """

    name: str
    module: nn.Module
    op: Op | None
    slots: tuple[Slot, ...]
    called: bool = True
    inside: bool = False

    def slot(self, tensor: str) -> Slot | None:
        """A slot by the name of its parameter."""
        return next((slot for slot in self.slots if slot.tensor == tensor), None)

    def features(self) -> int:
        """The axis of its input that holds the features; counted from the end, so that a batch axis may be missing."""
        if self.op is not None and self.op.features == 1:
            return 1 - len(float_shape(self.module, "weight")[0])
        return -1


@dataclass
class Catalogue:
    """Everything with parameters in a model.

    Args:
        layers: by name, in model order.
        skipped: layers with matrices that cannot be quantized, with the reason.
        unknown: of these, parameters whose use only a run can show: `(layer, parameter)`.
    """

    layers: dict[str, Layer] = field(default_factory=dict)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    unknown: list[tuple[str, str]] = field(default_factory=list)


def catalogue(model: nn.Module, seen: Mapping[tuple[str, str], Slot | str]) -> Catalogue:
    """Go through a model.

    Args:
        model: the module tree.
        seen: what runs showed of parameters in modules of unknown class, by layer and parameter.
    """
    found = Catalogue()
    passed: set[int] = set()  # parts of a module that is already dealt with as a whole
    read_only = {id(m.out_proj) for m in model.modules() if isinstance(m, nn.MultiheadAttention)}
    for name, module in model.named_modules():
        if id(module) in passed:
            continue
        computed = parametrize.is_parametrized(module)
        if computed:
            passed |= {id(part) for part in module.parametrizations.modules()}  # type: ignore[union-attr]
        elif not parameter_names(module):
            continue
        fault = _fault(module)
        op = kind_of(module) if fault is None else None
        if fault is not None:
            found.skipped.append((name, fault))
        elif op is not None:
            op = ATTENTION if id(module) in read_only else op
            found.layers[name] = Layer(name, module, op, slots_of(module), id(module) not in read_only)
            continue
        found.layers[name] = _unknown_layer(name, module, seen, found, report=fault is None)
    return found


def points(found: Catalogue, ties: Ties) -> list[Point]:
    """Every point of a catalogue, in model order."""
    return [point for layer in found.layers.values() if layer.op is not None for point in points_of(layer, ties)]


def points_of(layer: Layer, ties: Ties) -> Iterator[Point]:
    """The points of one layer."""
    assert layer.op is not None
    for slot in layer.slots:
        own, dtype = float_shape(layer.module, slot.tensor)
        tie = ties.get((id(layer.module), slot.tensor))
        yield Point(
            layer.name,
            slot.role,
            layer.op,
            slot.tensor,
            tuple(slot.ours(torch.empty(own, device="meta")).shape),
            str(dtype).removeprefix("torch."),
            slot.stack,
            slot.groups,
            tuple(tie.names) if tie is not None else (f"{layer.name}.{slot.tensor}".lstrip("."),),
        )
    if "forward" in vars(layer.module) or not layer.called:
        return  # a forward put in the place of the class's own does not pass by quantizers
    feeds = tuple(slot.tensor for slot in layer.slots if slot.fed)
    if layer.op is not EMBEDDING and feeds and _one_width(layer):
        yield Point(layer.name, Role.input, layer.op, feeds=feeds)
    yield Point(layer.name, Role.output, layer.op)


def _one_width(layer: Layer) -> bool:
    """Whether everything the layer's input is multiplied with takes the same features (attention may differ)."""
    widths = {slot.ours(_empty(layer, slot)).shape[slot.stack + 1] for slot in layer.slots if slot.fed}
    return len(widths) == 1


def _empty(layer: Layer, slot: Slot) -> Tensor:
    return torch.empty(float_shape(layer.module, slot.tensor)[0], device="meta")


def _fault(module: nn.Module) -> str | None:
    """Why none of a module's parameters can be quantized, in words; none if there is nothing against it."""
    kind = type(module).__name__
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():  # type: ignore[misc]
        return f"{kind} has no weights yet: run the model once, then quantize"
    if parametrize.is_parametrized(module):
        names = ", ".join(module.parametrizations)  # type: ignore[arg-type]
        return (
            f"{names} of {kind} is computed from other tensors at each call (weight norm, spectral norm or another "
            f"parametrization): torch.nn.utils.parametrize.remove_parametrizations makes it a plain parameter"
        )
    if kind_of(module) is None:
        return None
    if not {"weight", "in_proj_weight", "q_proj_weight", "weight_ih", "weight_ih_l0"} & set(parameter_names(module)):
        return (
            f"the weight of {kind} is no parameter of its own: a hook makes it at each call (weight_norm, "
            f"spectral_norm or pruning of torch.nn.utils); remove_weight_norm, remove_spectral_norm or prune.remove "
            f"makes it one"
        )
    weights = [float_shape(module, slot.tensor) for slot in slots_of(module) if slot.role is Role.weight]
    if any(0 in shape for shape, _ in weights):
        return f"the weight of {kind} has no elements"
    odd = [str(dtype).removeprefix("torch.") for dtype in {dtype for _, dtype in weights} if dtype not in FLOATS]
    if odd:
        return f"the weight of {kind} is {', '.join(odd)}: no plain float tensor, perhaps quantized already"
    plain = all(type(t) in (nn.Parameter, Tensor) for t in held(module).values())
    return None if plain else f"the weight of {kind} is a tensor of a special class (sharded or quantized already)"


def _unknown_layer(
    name: str, module: nn.Module, seen: Mapping[tuple[str, str], Slot | str], found: Catalogue, *, report: bool
) -> Layer:
    """A layer whose class says nothing: experts where a run showed their matrices, otherwise float as it is."""
    slots: list[Slot] = []
    reasons: list[str] = []
    names = parameter_names(module) if report else []
    inside = any(part is not module and parameter_names(part) for part in module.modules())
    for tensor in names:
        shape, dtype = float_shape(module, tensor)
        if len(shape) < 2 or dtype not in FLOATS:
            continue
        if 0 in shape:
            reasons.append(f"{tensor}: has no elements")
            continue
        use = _kept_use(module, tensor) or seen.get((name, tensor))
        if isinstance(use, Slot):
            slots.append(use)
        elif not inside:
            found.unknown.append((name, tensor))
        if len(shape) >= 3 and not isinstance(use, Slot):
            reasons.append(f"{tensor}: {use or _why_unseen(inside)}")
        elif len(shape) == 2 and not tensor.endswith("bias"):
            reasons.append(f"{tensor}: a matrix in a layer of a class of its own")
    stacked = tuple(slot for slot in slots if slot.stack)
    if reasons:
        found.skipped.append((name, f"{type(module).__name__} stays in float: " + "; ".join(reasons)))
    if stacked:
        return Layer(name, module, EXPERTS, (*stacked, *_biases(module, stacked)), inside=inside)
    return Layer(name, module, None, tuple(slots), inside=inside)


def _kept_use(module: nn.Module, tensor: str) -> Slot | None:
    """The slot of experts that are codes already: their layout is known."""
    coded = module.coded.get(tensor) if isinstance(module, Quantized) else None
    if coded is None or len(coded.shape) < 3:
        return None
    return Slot(tensor, Role.weight, coded.axes, stack=len(coded.shape) - 2)


def _why_unseen(inside: bool) -> str:
    if inside:
        return "a parameter used among other layers"
    return "how it is used shows only when the model runs: give a sample first (`view.probe(item)`)"


def _biases(module: nn.Module, stacked: tuple[Slot, ...]) -> Iterator[Slot]:
    for slot in stacked:
        name = f"{slot.tensor}_bias"
        if name in parameter_names(module) and len(float_shape(module, name)[0]) == slot.stack + 1:
            yield Slot(name, Role.bias, tuple(range(slot.stack + 1)), stack=slot.stack)
