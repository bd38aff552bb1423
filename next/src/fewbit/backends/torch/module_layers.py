# SPDX-License-Identifier: Apache-2.0
"""The layers of a module: what could be quantized, and why the rest cannot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from fewbit.backends._base import ModuleLayer
from fewbit.backends.torch.graph import is_transposed_linear, module_graph
from fewbit.backends.torch.layers import QuantizedLayer


def list_layers(module: nn.Module) -> tuple[ModuleLayer, ...]:
    """Every layer with a weight; see `ModuleLayer`."""
    graph = module_graph(module)
    layers = {}
    for node in graph.nodes:
        owner = module.get_submodule(node.scope)
        weight = node.inputs[0] if node.op == "gather" else node.inputs[1]
        assert weight is not None
        constant = graph.constants[weight]
        parameter = "weight" if node.label == node.scope else node.label.removeprefix(f"{node.scope}.")
        bias = getattr(owner, "bias", None) if parameter == "weight" else None
        layers[node.label] = ModuleLayer(
            name=node.label, type=type(owner).__name__, op=node.op, module=node.scope, parameter=parameter,
            weight=weight, shape=constant.shape, groups=node.attrs.get("groups", 1),
            channel_axis=1 if node.op == "conv_transpose" or is_transposed_linear(owner) else 0,
            types=_type_names(owner),
            bias=f"{node.scope}.bias".lstrip(".") if isinstance(bias, Tensor) else None,
            observable=parameter == "weight" and "forward" not in vars(owner) and not _only_read(owner),
            geometry=_geometry(owner),
            reason="" if constant.stored else "its memory is also part of another tensor, a transposed one for example",
        )  # fmt: skip
    for note in graph.notes:
        name, _, reason = note.partition(" stays as it is: ")
        if reason:
            layer = _unusable(module, name, reason)
            layers.setdefault(layer.name, layer)
    for layer in _unknown_matrices(module, {layer.weight for layer in layers.values()}):
        layers.setdefault(layer.name, layer)
    order = {path: number for number, (path, _) in enumerate(module.named_modules())}
    return tuple(sorted(layers.values(), key=lambda layer: order[layer.module]))


def _geometry(owner: Any) -> tuple[Any, ...]:
    if not isinstance(owner, nn.modules.conv._ConvNd):
        return ()
    # PyTorch computes the zeros of `padding="same"` itself, in the order it pads: last axis first.
    flat = owner._reversed_padding_repeated_twice
    pads = tuple(zip(flat[::2], flat[1::2]))[::-1]
    return (owner.stride, pads, owner.dilation, owner.padding_mode)


def _type_names(owner: nn.Module) -> tuple[str, ...]:
    """The class that the user knows, and those it inherits from."""
    kind = owner.float_class if isinstance(owner, QuantizedLayer) else type(owner)
    return tuple(cls.__name__ for cls in kind.__mro__ if issubclass(cls, nn.Module) and cls is not nn.Module)


def _only_read(owner: nn.Module) -> bool:
    """The output projection of `nn.MultiheadAttention` is never called."""
    return isinstance(owner, nn.modules.linear.NonDynamicallyQuantizableLinear)


def _unusable(module: nn.Module, name: str, reason: str) -> ModuleLayer:
    path, _, parameter = name.rpartition(".")
    owner = module.get_submodule(path)
    quantized = isinstance(owner, QuantizedLayer) and parameter in owner.stored
    shape = owner.stored[parameter].shape if isinstance(owner, QuantizedLayer) and quantized else ()
    op = "gather" if isinstance(owner, nn.Embedding) else "conv" if len(shape) > 2 else "matmul"
    return ModuleLayer(
        path if parameter == "weight" else name, _type_names(owner)[0], name, shape, 0, op=op, module=path,
        parameter=parameter, types=_type_names(owner),
        observable=parameter == "weight" and not _only_read(owner),
        reason="it is quantized already" if quantized else reason,
    )  # fmt: skip


def _unknown_matrices(module: nn.Module, known: set[str]) -> Iterator[ModuleLayer]:
    """Parameters of classes whose use of them nothing tells."""
    covered = {name for constant, names in tied_names(module) if constant in known for name in names}
    for name, parameter in module.named_parameters():
        lazy = isinstance(parameter, nn.parameter.UninitializedParameter)
        if lazy or parameter.ndim < 2 or name in covered or ".parametrizations." in f".{name}":
            continue
        path, _, own = name.rpartition(".")
        types = _type_names(module.get_submodule(path))
        reason = f"{types[0]} is no known layer: how it uses this parameter is not known" if types else "no known layer"
        yield ModuleLayer(
            name, types[0] if types else "Module", name, tuple(parameter.shape), 0, module=path, parameter=own,
            types=types, observable=False, reason=reason,
        )  # fmt: skip


def tied_names(module: nn.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    """All names of each parameter and buffer, under each of them."""
    by_place: dict[Any, list[str]] = {}
    for path, owner in module.named_modules(remove_duplicate=False):
        for name, tensor in (*owner._parameters.items(), *owner._buffers.items()):
            if tensor is not None and not isinstance(tensor, nn.parameter.UninitializedParameter):
                # Meta tensors have no address.
                place = (
                    id(tensor) if tensor.is_meta else tensor.data_ptr(),
                    tensor.shape,
                    tensor.stride(),
                    tensor.dtype,
                )
                key = place if tensor.numel() else id(tensor)
                by_place.setdefault(key, []).append(f"{path}.{name}" if path else name)
    for names in by_place.values():
        for name in names:
            yield name, (name, *(other for other in names if other != name))
