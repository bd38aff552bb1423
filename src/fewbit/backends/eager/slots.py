# SPDX-License-Identifier: Apache-2.0
"""Slots: where the weights and biases of one module lie, and how its own layout becomes fewbit's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fewbit.model.ops import ATTENTION, CONV, CONV_TRANSPOSE, EMBEDDING, LINEAR, RECURRENT, Op
from fewbit.model.points import Role
from fewbit.modules.layout import to_ours, to_own
from fewbit.modules.quantized import Quantized


@dataclass(frozen=True)
class Slot:
    """One parameter of a module.

    Args:
        tensor: its name.
        role: weight or bias.
        axes: `own = ours.permute(axes)`.
        split: blocks of the first axis within which `axes` permutes.
        stack: leading axes that number independent weights.
        groups: of a grouped convolution.
        fed: whether it is a weight that the layer's own input is multiplied with.
    """

    tensor: str
    role: Role
    axes: tuple[int, ...]
    split: int = 1
    stack: int = 0
    groups: int = 1
    fed: bool = False

    def ours(self, own: Tensor) -> Tensor:
        """The parameter in fewbit's layout."""
        return to_ours(own, self.axes, self.split)

    def own(self, ours: Tensor) -> Tensor:
        """A tensor of fewbit's layout as the module keeps it."""
        return to_own(ours, self.axes, self.split)


def kind_of(module: nn.Module) -> Op | None:
    """The neutral operation of a module whose class is known, or none."""
    for classes, op in _KINDS:
        if isinstance(module, classes):
            return op
    return LINEAR if _is_conv1d(module) else None


def slots_of(module: nn.Module) -> tuple[Slot, ...]:
    """The slots of a module whose class is known; absent parameters left out."""
    found = (_slot(module, name) for name in parameter_names(module))
    return tuple(slot for slot in found if slot is not None)


def parameter_names(module: nn.Module) -> list[str]:
    """A module's own parameters, those kept as codes included, in an order that quantizing does not change."""
    there = {name for name, parameter in module._parameters.items() if parameter is not None}
    if isinstance(module, Quantized):
        there |= module.coded.keys()
    first = [name for name in (*getattr(module, "_flat_weights_names", ()), *_USUAL) if name in there]
    return [*first, *sorted(there - set(first))]


def float_shape(module: nn.Module, name: str) -> tuple[tuple[int, ...], torch.dtype]:
    """The shape, in the module's layout, and dtype of a parameter, whether it is kept as floats or as codes."""
    if isinstance(module, Quantized) and name in module.coded:
        coded = module.coded[name]
        return coded.own_shape, coded.dtype
    parameter = module._parameters[name]
    assert parameter is not None
    return tuple(parameter.shape), parameter.dtype


_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_KINDS: tuple[tuple[type[nn.Module] | tuple[type[nn.Module], ...], Op], ...] = (
    (nn.Linear, LINEAR),
    (_CONVS, CONV),
    (_TRANSPOSED, CONV_TRANSPOSE),
    ((nn.Embedding, nn.EmbeddingBag), EMBEDDING),
    (nn.MultiheadAttention, ATTENTION),
    (_RECURRENT, RECURRENT),
)
_PROJECTIONS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
_USUAL = (*_PROJECTIONS, "in_proj_bias", "weight", "bias", "weight_ih", "weight_hh", "bias_ih", "bias_hh")


def _is_conv1d(module: nn.Module) -> bool:
    """Whether this is Hugging Face's `Conv1D`, told by name so that the library is not imported."""
    return any(b.__name__ == "Conv1D" and b.__module__ == "transformers.pytorch_utils" for b in type(module).__mro__)


def _slot(module: nn.Module, name: str) -> Slot | None:
    axes = tuple(range(len(float_shape(module, name)[0])))
    if isinstance(module, nn.MultiheadAttention):
        if name in _PROJECTIONS:
            return Slot(name, Role.weight, axes, fed=True)
        return Slot(name, Role.bias, axes) if name == "in_proj_bias" else None
    if isinstance(module, _RECURRENT):
        fed = name in ("weight_ih", "weight_ih_l0", "weight_ih_l0_reverse")
        return Slot(name, Role.weight if name.startswith("weight") else Role.bias, axes, fed=fed)
    if name == "bias":
        return Slot(name, Role.bias, axes)
    if name != "weight":
        return None
    if isinstance(module, _TRANSPOSED):
        return Slot(name, Role.weight, (1, 0, *axes[2:]), split=module.groups, groups=module.groups, fed=True)
    if isinstance(module, _CONVS):
        return Slot(name, Role.weight, axes, groups=module.groups, fed=True)
    if _is_conv1d(module):
        return Slot(name, Role.weight, (1, 0), fed=True)
    return Slot(name, Role.weight, axes, fed=isinstance(module, nn.Linear))
