# SPDX-License-Identifier: Apache-2.0
"""PyTorch: an `nn.Module` (names from `forward`), an `ExportedProgram` or a `.pt2` file (shapes and dtypes too)."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fewbit.data.signature import InputSpec, Signature
from fewbit.data.signatures._items import goes_whole, is_call, refuse_unknown, too_many
from fewbit.data.tree import map_leaves
from fewbit.errors import require

_WRAPPERS = ("module", "_orig_mod")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
"""What a module computes in. Smaller floats are ways to store weights, and no module takes its inputs in them."""


def accepts(model: object) -> bool:
    """Whether this is a PyTorch model, by its suffix or the names of its base classes; torch is not imported."""
    if isinstance(model, str | Path):
        return str(model).lower().endswith(".pt2")
    names = {f"{base.__module__}.{base.__name__}" for base in type(model).__mro__}
    return bool(names & {"torch.nn.modules.module.Module", "torch.export.exported_program.ExportedProgram"})


def read(model: Any) -> Signature:
    """The parameters of `forward`, or the inputs of an exported graph.

    Raises:
        DataError: a `.pt2` file that cannot be read, or whose loading would run code.
    """
    if isinstance(model, str | Path):
        require("torch", extra="torch", purpose="reading a .pt2 file")
        from fewbit.data.program import open_program

        return _of_program(open_program(Path(model).expanduser()), str(model))
    if hasattr(model, "graph_signature"):
        return _of_program(model, "ExportedProgram")
    return _of_module(model)


def feed(named: dict[str, Any], signature: Signature) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A batch as `model(*args, **kwargs)` takes it: by name, except where a model insists on places."""
    dtypes = {spec.name: spec.dtype for spec in signature.inputs}
    order = [name for name in signature.names if name in named]
    order += [name for name in named if name not in dtypes and (signature.open_ended or not dtypes)]
    tensors = {name: _tensor(named[name], dtypes.get(name) or signature.floating) for name in order}
    by_place = order[: signature.positional]
    args = tuple(tensors.pop(name) for name in by_place)
    return args, tensors


def feed_item(item: Any, signature: Signature) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A user's own model input as `(args, kwargs)`, floats in the dtype of the module's parameters.

    A mapping goes whole to a model that takes one thing, unless a name in it is that of a parameter or close to one.

    Raises:
        DataError: more values than inputs, or names the model does not have.
    """
    if isinstance(item, Mapping):
        return _mapping(item, signature)
    tensor = _for(signature)
    if is_call(item):
        args, kwargs = map_leaves(tensor, item)
        return args, kwargs
    if isinstance(item, tuple) or (isinstance(item, list) and (len(signature.inputs) != 1 or len(item) == 1)):
        if len(item) > len(signature.inputs) and not signature.open_ended:
            raise too_many(len(item), signature)
        return tuple(map_leaves(tensor, value) for value in item), {}
    return (map_leaves(tensor, item),), {}


def _for(signature: Signature) -> Callable[[Any], Any]:
    return partial(_tensor, dtype=signature.floating)


def _mapping(item: Mapping[str, Any], signature: Signature) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if goes_whole(item, signature):
        return (map_leaves(_for(signature), item),), {}
    refuse_unknown(item, signature)
    named = {name: map_leaves(_for(signature), value) for name, value in item.items()}
    args = tuple(named.pop(name) for name in signature.names[: signature.positional] if name in named)
    return args, named


def _of_module(model: Any) -> Signature:
    source, floating = type(model).__name__, _parameter_dtype(model)
    signature = _forward(_unwrapped(model))
    if isinstance(signature, tuple):
        return Signature("torch", signature, source=source, floating=floating)
    inputs, positional, by_place, open_ended = [], 0, False, False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            by_place = True
        elif parameter.kind is parameter.VAR_KEYWORD:
            open_ended = True
        else:
            inputs.append(InputSpec(parameter.name, required=parameter.default is parameter.empty))
            positional += parameter.kind is parameter.POSITIONAL_ONLY
    if by_place and not open_ended:
        positional, open_ended = sys.maxsize, True
    return Signature("torch", tuple(inputs), open_ended, positional, source, floating)


def _parameter_dtype(model: Any) -> str | None:
    """The dtype of the first floating parameter; `None` for a module without any."""
    dtypes = (str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters())
    return next((dtype for dtype in dtypes if dtype in _FLOATS), None)


def _unwrapped(model: Any) -> Any:
    """The module that DataParallel, DistributedDataParallel or `torch.compile` stand before."""
    while _only_passes_on(_forward(model)):
        inner = next((model._modules[name] for name in _WRAPPERS if name in model._modules), None)
        if inner is None:
            break
        model = inner
    return model


def _forward(model: Any) -> inspect.Signature | tuple[InputSpec, ...]:
    schema = getattr(model.forward, "schema", None)  # a scripted module keeps its parameters there
    if schema is not None:
        rest = schema.arguments[1:]
        return tuple(InputSpec(argument.name, required=not argument.has_default_value()) for argument in rest)
    return inspect.signature(model.forward)


def _only_passes_on(signature: inspect.Signature | tuple[InputSpec, ...]) -> bool:
    """Whether `forward` is `(*args, **kwargs)`, as that of DataParallel and of compiled modules."""
    if isinstance(signature, tuple):
        return False
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    return bool(kinds) and kinds <= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def _of_program(program: Any, source: str) -> Signature:
    wanted = [name for name in program.graph_signature.user_inputs if isinstance(name, str)]
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    inputs = tuple(_of_node(name, nodes[name].meta.get("val")) for name in wanted)
    _, kwargs = program.call_spec.in_spec.children()
    names = list(kwargs.context or ())
    positional = len(inputs) - kwargs.num_leaves
    if len(names) == kwargs.num_leaves:  # flat keyword inputs are called by their own names
        renamed = [InputSpec(name, spec.shape, spec.dtype) for name, spec in zip(names, inputs[positional:])]
        inputs = (*inputs[:positional], *renamed)
    return Signature("torch", inputs, positional=positional, source=source)


def _of_node(name: str, value: Any) -> InputSpec:
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return InputSpec(name)
    shape = tuple(int(axis) if isinstance(axis, int) else str(axis) for axis in value.shape)
    return InputSpec(name, shape, str(value.dtype).removeprefix("torch."))


def _tensor(value: Any, dtype: str | None = None) -> Any:
    """An array as a tensor that shares its memory where it can, a floating one in a floating `dtype`; else as it is."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "OUS":
        torch = require("torch", extra="torch", purpose="feeding a PyTorch model")
        array = np.asarray(value)
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
        if not array.dtype.isnative or not array.flags.writeable or min(array.strides, default=0) < 0:
            array = np.array(array, dtype=array.dtype.newbyteorder("="))
        value = torch.from_numpy(array)
    if dtype in _FLOATS and _is_floating(value):
        return value.to(getattr(require("torch", extra="torch", purpose="feeding a PyTorch model"), dtype))
    return value


def _is_floating(value: Any) -> bool:
    return str(getattr(value, "dtype", "")).removeprefix("torch.") in _FLOATS and hasattr(value, "to")
