# SPDX-License-Identifier: Apache-2.0
"""An exported program as modules: its linear layers, convolutions and embeddings become `nn` modules again.

A program calls operators on parameters. Quantization works on layers, so each operator whose weight is a parameter
becomes a call of a layer that holds it, in the place the parameter's name says.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

_aten = torch.ops.aten


def lift(program: Any) -> fx.GraphModule:
    """The module of an `ExportedProgram`, with layers where the operators were; it computes the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about inputs that are no tensors, of a function we do not keep
        module = program.module(check_guards=False)  # guards are Python texts from the file
    # Built anew: the program's own module refuses evaluation mode, and its hooks hold it to the shapes of the example.
    graph_module = fx.GraphModule(module, module.graph)
    for node in list(graph_module.graph.nodes):
        make = _LAYERS.get(node.target) if node.op == "call_function" else None
        if make is not None:
            _replace(graph_module, node, make)
    graph_module.graph.eliminate_dead_code()
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


def _replace(graph_module: fx.GraphModule, node: fx.Node, make: Callable[..., tuple[nn.Module, Any]]) -> None:
    arguments = node.normalized_arguments(graph_module, normalize_to_only_use_kwargs=True)
    if arguments is None:
        return
    named = dict(arguments.kwargs)
    weight, bias = named.pop("weight"), named.pop("bias", None)
    if not all(part is None or part.op == "get_attr" for part in (weight, bias)):
        return
    values = _value(graph_module, weight)
    if values.dim() < 2:
        return  # `linear` takes a vector too, which no layer has
    with torch.device("meta"):
        layer, given = make(values, bias is not None, **named)
    layer.weight = values
    if bias is not None:
        layer.bias = _value(graph_module, bias)
    path = _place(graph_module, layer, str(weight.target), node)
    graph_module.add_submodule(path, layer)
    with graph_module.graph.inserting_before(node):
        call = graph_module.graph.call_module(path, (given,))
    call.meta = node.meta
    node.replace_all_uses_with(call)
    graph_module.graph.erase_node(node)
    for part in (weight, bias):
        if part is not None and not part.users:
            graph_module.graph.erase_node(part)


def _place(graph_module: fx.GraphModule, layer: nn.Module, weight: str, node: fx.Node) -> str:
    """Where the layer goes: where the module was that made the call, else where its weight is, else beside that."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    called = stack[-1][0] if stack else ""
    owner, _, name = weight.rpartition(".")
    for path in (called, owner):
        if path and _holds_only(graph_module, path, layer):
            return path
    place = f"{owner}.{name}_{type(layer).__name__.lower()}".lstrip(".")
    known = dict(graph_module.named_modules())
    while place in known:
        place += "_"
    return place


def _holds_only(graph_module: fx.GraphModule, path: str, layer: nn.Module) -> bool:
    """Whether there is a bare module at a path, or this very layer, with the layer's parameters and nothing else."""
    try:
        held = graph_module.get_submodule(path)
    except AttributeError:
        return False
    theirs = {name: value for name, value in held._parameters.items() if value is not None}
    ours = {name: value for name, value in layer._parameters.items() if value is not None}
    alike = theirs.keys() == ours.keys() and all(_is_one(theirs[name], ours[name]) for name in ours)
    return alike and type(held) in (nn.Module, type(layer)) and not held._modules and not held._buffers


def _is_one(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a is b or (a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride())


def _value(graph_module: fx.GraphModule, node: fx.Node) -> nn.Parameter:
    """A parameter by its name; of several that share their memory the first, so that ties are seen."""
    owner, _, name = str(node.target).rpartition(".")
    value = getattr(graph_module.get_submodule(owner), name)
    if not isinstance(value, nn.Parameter):
        return nn.Parameter(value, requires_grad=False)
    return next(parameter for parameter in graph_module.parameters() if _is_one(parameter, value))


def _linear(weight: torch.Tensor, bias: bool, *, input: Any) -> tuple[nn.Module, Any]:
    return nn.Linear(weight.shape[1], weight.shape[0], bias), input


def _embedding(
    weight: torch.Tensor,
    bias: bool,
    *,
    indices: Any,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> tuple[nn.Module, Any]:
    return nn.Embedding(weight.shape[0], weight.shape[1], None if padding_idx < 0 else padding_idx), indices


def _convolution(kind: type[nn.Module]) -> Callable[..., tuple[nn.Module, Any]]:
    def make(
        weight: torch.Tensor,
        bias: bool,
        *,
        input: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> tuple[nn.Module, Any]:
        axes = weight.dim() - 2
        stride, dilation = _each(stride, axes), _each(dilation, axes)
        padding = padding if isinstance(padding, str) else _each(padding, axes)
        size = tuple(weight.shape[2:])
        layer = kind(weight.shape[1] * groups, weight.shape[0], size, stride, padding, dilation, groups, bias)
        return layer, input

    return make


def _each(value: Any, axes: int) -> tuple[int, ...]:
    sides = (value,) if isinstance(value, int) else tuple(value)
    return sides * axes if len(sides) == 1 else sides


_LAYERS: dict[Any, Callable[..., tuple[nn.Module, Any]]] = {
    _aten.linear.default: _linear,
    _aten.embedding.default: _embedding,
    _aten.conv1d.default: _convolution(nn.Conv1d),
    _aten.conv2d.default: _convolution(nn.Conv2d),
    _aten.conv3d.default: _convolution(nn.Conv3d),
    _aten.conv1d.padding: _convolution(nn.Conv1d),
    _aten.conv2d.padding: _convolution(nn.Conv2d),
    _aten.conv3d.padding: _convolution(nn.Conv3d),
}
