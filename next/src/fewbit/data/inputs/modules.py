# SPDX-License-Identifier: Apache-2.0
"""What an `nn.Module` takes, from the signature of `forward`; the module is never run."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from fewbit.errors import require
from fewbit.model_info import ModelInfo, TensorInfo

FLOATS = ("float16", "bfloat16", "float32", "float64")
"""What a module computes in; smaller floats only store weights."""
ALL_POSITIONAL = sys.maxsize
_WRAPPED = ("module", "_orig_mod")


def is_module(model: Any) -> bool:
    """Whether this is an `nn.Module`, by the names of its base classes; torch is not imported."""
    return any(f"{base.__module__}.{base.__name__}" == "torch.nn.modules.module.Module" for base in type(model).__mro__)


def module_info(model: Any) -> ModelInfo:
    """Inputs of a module by the parameters of `forward`; shapes and dtypes of inputs are not known.

    `facts` say the rest: `open_ended` (takes other names too), `positional` (how many inputs go by place), `floating`
    (dtype of its parameters, in which it takes floats), `main_input` (of Hugging Face models, all of whose inputs are
    optional).
    """
    inner = unwrap(model)
    inputs, positional, open_ended = _parameters(inner)
    facts: dict[str, Any] = {"open_ended": open_ended, "positional": positional, "floating": _floating(model)}
    main = getattr(inner, "main_input_name", None)
    if isinstance(main, str) and any(tensor.name == main for tensor in inputs):
        facts["main_input"] = main
    config = getattr(inner, "config", None)
    vocabulary = getattr(config, "vocab_size", None)
    return ModelInfo(
        source=type(inner).__name__,
        kind=type(inner).__name__,
        backend="torch",
        size=sum(tensor.numel() * tensor.element_size() for tensor in model.parameters()),
        inputs=inputs,
        labels=_labels(config),
        vocabulary=vocabulary if isinstance(vocabulary, int) else None,
        facts=facts,
    )


def unwrap(model: Any) -> Any:
    """The module behind DataParallel, DistributedDataParallel and `torch.compile`.

    Only a `forward` of `(*args, **kwargs)` is looked through: a user's module may well have a child called `module`.
    """
    while _only_passes_on(model):
        inner = next((model._modules[name] for name in _WRAPPED if name in model._modules), None)
        if inner is None:
            break
        model = inner
    return model


def call_arguments(inputs: Mapping[str, Any], info: ModelInfo) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs by name as `model(*args, **kwargs)` takes them, arrays as tensors, floats in the module's dtype.

    Args:
        inputs: arrays or tensors by name; nested values keep their structure.
        info: of a module or an exported program.
    """
    dtypes = {tensor.name: tensor.dtype for tensor in info.inputs}
    floating = info.facts.get("floating")
    order = [name for name in dtypes if name in inputs] + [name for name in inputs if name not in dtypes]
    tensors = {name: to_tensor(inputs[name], dtypes.get(name) or floating) for name in order}
    by_place = order[: info.facts.get("positional", 0)]
    args = tuple(tensors.pop(name) for name in by_place)
    return args, tensors


def to_tensor(value: Any, floating: str | None = None) -> Any:
    """An array as a tensor that shares its memory where it can; floats in the dtype `floating`, all else unchanged."""
    if isinstance(value, Mapping):
        return {key: to_tensor(item, floating) for key, item in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(to_tensor(item, floating) for item in value)
    torch = require("torch", extra="torch", purpose="PyTorch models")
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "OUS":
        array = np.asarray(value)
        if array.dtype.name == "bfloat16":
            value = torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
        else:
            if not array.dtype.isnative or not array.flags.writeable or min(array.strides, default=0) < 0:
                array = np.array(array, dtype=array.dtype.newbyteorder("="))
            value = torch.from_numpy(array)
    if floating in FLOATS and isinstance(value, torch.Tensor) and str(value.dtype).removeprefix("torch.") in FLOATS:
        return value.to(getattr(torch, floating))
    return value


def _parameters(model: Any) -> tuple[tuple[TensorInfo, ...], int, bool]:
    schema = getattr(model.forward, "schema", None)
    if schema is not None:  # a scripted module keeps its parameters there
        arguments = schema.arguments[1:]
        tensors = [TensorInfo(argument.name, required=not argument.has_default_value()) for argument in arguments]
        return tuple(tensors), 0, False
    inputs, positional, by_place, open_ended = [], 0, False, False
    for parameter in inspect.signature(model.forward).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            by_place = True
        elif parameter.kind is parameter.VAR_KEYWORD:
            open_ended = True
        else:
            inputs.append(TensorInfo(parameter.name, required=parameter.default is parameter.empty))
            positional += parameter.kind is parameter.POSITIONAL_ONLY
    if by_place and not open_ended:
        positional, open_ended = ALL_POSITIONAL, True
    return tuple(inputs), positional, open_ended


def _only_passes_on(model: Any) -> bool:
    if getattr(model.forward, "schema", None) is not None:
        return False
    kinds = {parameter.kind for parameter in inspect.signature(model.forward).parameters.values()}
    return bool(kinds) and kinds <= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def _floating(model: Any) -> str | None:
    dtypes = (str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters())
    return next((dtype for dtype in dtypes if dtype in FLOATS), None)


def _labels(config: Any) -> tuple[str, ...] | None:
    """Class names of a Hugging Face configuration, unless they are `LABEL_0`, `LABEL_1`, …"""
    names = getattr(config, "id2label", None)
    if not isinstance(names, Mapping) or not names or sorted(names) != list(range(len(names))):
        return None
    labels = tuple(str(names[index]) for index in range(len(names)))
    return None if all(name == f"LABEL_{index}" for index, name in enumerate(labels)) else labels
