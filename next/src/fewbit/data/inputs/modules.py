# SPDX-License-Identifier: Apache-2.0
"""What an `nn.Module` takes, from the signature of `forward`; the module is never run."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from fewbit.errors import require
from fewbit.model_info import ModelInfo, TensorInfo, as_labels

FLOATS = ("float16", "bfloat16", "float32", "float64")
"""What a module computes in; smaller floats only store weights."""
ALL_POSITIONAL = sys.maxsize


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
    dtypes = [str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()]
    floating = next((dtype for dtype in dtypes if dtype in FLOATS), None)
    facts: dict[str, Any] = {"open_ended": open_ended, "positional": positional, "floating": floating}
    main, config = getattr(inner, "main_input_name", None), getattr(inner, "config", None)
    if main in [tensor.name for tensor in inputs]:
        facts["main_input"] = main
    vocabulary, labels = getattr(config, "vocab_size", None), getattr(config, "id2label", None)
    return ModelInfo(
        source=type(inner).__name__,
        kind=type(inner).__name__,
        backend="torch",
        # Parameters of lazy modules have no size before the first call.
        size=sum(t.numel() * t.element_size() for t in model.parameters() if not hasattr(t, "materialize")),
        inputs=inputs,
        labels=as_labels(labels) if isinstance(labels, Mapping) else None,
        vocabulary=vocabulary if isinstance(vocabulary, int) else None,
        takes_tensors=True,
        takes_objects=True,
        facts=facts,
    )


def unwrap(model: Any) -> Any:
    """The module behind DataParallel, DistributedDataParallel and `torch.compile`.

    Only a `forward` of `(*args, **kwargs)` is looked through: a user's module may well have a child called `module`.
    """
    while _only_passes_on(model):
        inner = next((model._modules[name] for name in ("module", "_orig_mod") if name in model._modules), None)
        if inner is None:
            break
        model = inner
    return model


def _only_passes_on(model: Any) -> bool:
    if getattr(model.forward, "schema", None) is not None:
        return False
    kinds = {parameter.kind for parameter in inspect.signature(model.forward).parameters.values()}
    return bool(kinds) and kinds <= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def _parameters(model: Any) -> tuple[tuple[TensorInfo, ...], int, bool]:
    """The inputs, how many of them go by place, and whether there may be others."""
    schema = getattr(model.forward, "schema", None)
    if schema is not None:  # a scripted module keeps its parameters there
        arguments = schema.arguments[1:]
        return tuple(TensorInfo(item.name, required=not item.has_default_value()) for item in arguments), 0, False
    parameters = inspect.signature(model.forward).parameters.values()
    kinds = [parameter.kind for parameter in parameters]
    inputs = tuple(
        TensorInfo(parameter.name, required=parameter.default is parameter.empty)
        for parameter in parameters
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    )
    if inspect.Parameter.VAR_POSITIONAL in kinds and inspect.Parameter.VAR_KEYWORD not in kinds:
        return inputs, ALL_POSITIONAL, True
    return inputs, kinds.count(inspect.Parameter.POSITIONAL_ONLY), inspect.Parameter.VAR_KEYWORD in kinds


def call_arguments(inputs: Mapping[str, Any], info: ModelInfo) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs by name as `model(*args, **kwargs)` takes them, arrays as tensors, floats in the module's dtype."""
    dtypes = {tensor.name: tensor.dtype for tensor in info.inputs}
    order = [name for name in dtypes if name in inputs] + [name for name in inputs if name not in dtypes]
    tensors = {name: to_tensor(inputs[name], dtypes.get(name) or info.facts.get("floating")) for name in order}
    by_place = order[: info.facts.get("positional", 0)]
    return tuple(tensors.pop(name) for name in by_place), tensors


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
