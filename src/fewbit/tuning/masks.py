# SPDX-License-Identifier: Apache-2.0
"""Zeros that hold: a pruned weight stays pruned while the rest of it learns.

Setting weights to zero after a step is not enough: their gradients still count in the norm that clips all others, and
their momentum lives on and moves them again. Here gradients are masked before the norm is taken, and the optimizer's
state along with the weights after the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.errors import UsageError, nearest
from fewbit.numerics.sparsity import is_pruned
from fewbit.tuning.learning_layers import Learning


class Masks:
    """The pruned elements of a model's parameters.

    Call `apply_gradients` when the gradients of a step are complete and not yet clipped, and `apply_weights` after the
    optimizer's step.

    Args:
        pruned: by name, a parameter and the elements of it that are zero for good.

    >>> layer = nn.Linear(2, 1)
    >>> layer.weight.data = torch.tensor([[0.0, 3.0]])
    >>> masks = Masks.of(layer)
    >>> layer(torch.ones(1, 2)).sum().backward()
    >>> masks.apply_gradients()
    >>> layer.weight.grad
    tensor([[0., 1.]])
    """

    def __init__(self, pruned: Mapping[str, tuple[nn.Parameter, Tensor]]):
        self._pruned = dict(pruned)

    @classmethod
    def of(cls, model: nn.Module, given: Mapping[str, Tensor] | None = None) -> Masks:
        """The masks of a model as it is.

        A float matrix that learns is pruned where it is exactly zero, if that is one element in a thousand at least;
        one that is zero throughout is not pruned but new (as the second factor of LoRA is). In a quantized weight zero
        is a code like any other: its mask is what `given` says, or what was found when it began to learn.

        Args:
            model: as the optimizer sees it.
            given: by the parameter's name, true for what is kept; instead of looking for zeros.

        Raises:
            UsageError: names that are no parameters, masks of another shape, all at once.
        """
        given = given or {}
        parameters = dict(model.named_parameters())
        _refuse(given, parameters)
        told, tables = dict(_told(model)), set(_with_padding(model))
        found: dict[str, tuple[nn.Parameter, Tensor]] = {}
        for name, parameter in parameters.items():
            kept = given.get(name)
            if kept is not None:
                found[name] = parameter, _like(~kept.bool(), parameter)
            elif name in told:
                if told[name] is not None:
                    found[name] = parameter, _like(told[name], parameter)
            elif parameter.requires_grad and (zeros := pruned_zeros(parameter, name in tables)) is not None:
                found[name] = parameter, zeros
        return cls(found)

    def __len__(self) -> int:
        return len(self._pruned)

    def __iter__(self) -> Iterator[str]:
        return iter(self._pruned)

    @torch.no_grad()
    def apply_gradients(self) -> None:
        """Take out the gradients of pruned elements, in place; those that are infinite or NaN too."""
        for parameter, pruned in self._pruned.values():
            if parameter.grad is not None:
                parameter.grad.masked_fill_(pruned, 0)

    @torch.no_grad()
    def apply_weights(self, optimizer: Any = None) -> None:
        """Set pruned elements to zero, in place, and whatever the optimizer remembers of them."""
        for parameter, pruned in self._pruned.values():
            parameter.masked_fill_(pruned, 0)
            state = {} if optimizer is None else optimizer.state.get(parameter, {})
            for value in state.values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    value.masked_fill_(pruned, 0)

    def pruned(self, name: str) -> Tensor | None:
        """The elements of a parameter that are pruned; none where nothing is."""
        return self._pruned[name][1] if name in self._pruned else None

    def prune(self, name: str, parameter: nn.Parameter, pruned: Tensor) -> None:
        """Hold other elements of a parameter from now on.

        Args:
            name: of the parameter.
            parameter: itself.
            pruned: the whole of it, wherever parts of the parameter are; true for what is zero for good.
        """
        self._pruned[name] = parameter, _like(pruned, parameter)

    def state_dict(self) -> dict[str, Tensor]:
        """The pruned elements by name, for a checkpoint: a weight may pass through zero and is not pruned by that."""
        return {name: pruned for name, (_, pruned) in self._pruned.items()}

    def load_state_dict(self, state: Mapping[str, Tensor], model: nn.Module) -> None:
        """Take the masks of a checkpoint."""
        parameters = dict(model.named_parameters())
        _refuse(state, parameters)
        self._pruned = {name: (parameters[name], _like(pruned, parameters[name])) for name, pruned in state.items()}


def pruned_zeros(weight: Tensor, padded: bool = False) -> Tensor | None:
    """Where a float matrix is pruned; none where it is not, or where there is nothing but zeros.

    Args:
        weight: the matrix.
        padded: whether one row is for padding, which is zero and not pruned.
    """
    if weight.ndim < 2 or not weight.is_floating_point():
        return None
    zeros = weight.detach() == 0
    found, elements = int(zeros.sum()), weight.numel()
    padding = elements // len(weight) if padded else 0
    return zeros if is_pruned(found - padding, elements) and found < elements else None


def _with_padding(model: nn.Module) -> Iterator[str]:
    """The tables that have a row for padding, which gets no gradient without us."""
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            yield f"{path}.weight".lstrip(".")


def _like(pruned: Tensor, parameter: Any) -> Tensor:
    """A mask as the parameter is held: on its device, or this process's part of it."""
    pruned = pruned.to(parameter.device)
    if not hasattr(parameter, "full_tensor"):
        return pruned
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(pruned, parameter.device_mesh, parameter.placements)


def _told(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, module in model.named_modules():
        if isinstance(module, Learning):
            for name in module.coded:
                yield f"{path}.{name}".lstrip("."), module.pruned.get(name)


def _refuse(given: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    faults = [f"{name}: {nearest(name, parameters)[:200]}" for name in given if name not in parameters]
    faults += [
        f"{name}: a mask of shape {list(mask.shape)} for a parameter of shape {list(parameters[name].shape)}"
        for name, mask in given.items()
        if name in parameters and mask.shape != parameters[name].shape
    ]
    if faults:
        raise UsageError("masks do not fit the model: " + "; ".join(faults), where="masks", expected="by parameter")
