# SPDX-License-Identifier: Apache-2.0
"""A PyTorch module as a model: a copy that is observed by hooks, edited layer by layer, run and handed back.

Values are named after the layers: `fc1.input` and `fc1.output`. The user's module is never run or changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fewbit.backends._base import ModuleLayer, RunResult
from fewbit.backends.torch.graph import ModuleCall, module_graph
from fewbit.backends.torch.kernels import freeze
from fewbit.backends.torch.layers import (
    ActivationQuantizer,
    QuantizedLayer,
    as_quantized,
    close_fast_paths,
    set_weight,
    share_weight,
)
from fewbit.backends.torch.module_layers import list_layers, tied_names
from fewbit.data.inputs.modules import call_arguments, module_info, unwrap
from fewbit.errors import DataError, ModelError, UsageError
from fewbit.graph.edits import AddBias, DynamicQuantize, Edit, EncodeWeight, InsertQDQ, ScaleChannels, SetConstant
from fewbit.graph.ir import Graph
from fewbit.numerics.grid import QParams
from fewbit.rng import isolated

Observer = Callable[..., None]


class ModuleModel:
    """A module that can be edited.

    Args:
        module: its own copy.
    """

    edits = frozenset({EncodeWeight, InsertQDQ, DynamicQuantize, AddBias, SetConstant, ScaleChannels})

    def __init__(self, module: nn.Module):
        self.module = module
        self.info = module_info(module)
        self._paths: dict[str, str] | None = None
        self._constants = dict(tied_names(module))

    @classmethod
    def read(cls, module: nn.Module) -> ModuleModel:
        """A copy of the user's module.

        Raises:
            UsageError: no module whose parts can be replaced.
        """
        _refuse_traced(module)
        return cls(copy_module(unwrap(module)))

    def layers(self) -> tuple[ModuleLayer, ...]:
        """Every layer with a weight, in the order of the module tree; see `list_layers`."""
        return list_layers(self.module)

    def graph(self, example: ModuleCall | None = None) -> Graph:
        """The neutral graph; connected if `torch.export` can trace a call."""
        return module_graph(self.module, example)

    def fork(self) -> ModuleModel:
        """A copy that shares matrices until an edit replaces them."""
        return ModuleModel(copy_module(self.module))

    def weight(self, name: str) -> Tensor:
        """A parameter or buffer by name, without gradient."""
        owner, parameter = self._owner(name)
        value: Tensor = getattr(owner, parameter)
        return value.detach()

    def apply(self, edits: Iterable[Edit]) -> None:
        """Change the copy.

        Raises:
            UsageError: an edit of another kind, or of something that does not exist.
        """
        layers = {layer.name: layer for layer in self.layers()}
        for edit in edits:
            if isinstance(edit, EncodeWeight):
                self._encode(edit)
            elif isinstance(edit, InsertQDQ | DynamicQuantize):
                self._quantize_value(edit, layers)
            elif isinstance(edit, AddBias):
                self._add_bias(edit, layers)
            elif isinstance(edit, SetConstant):
                self._set(edit.constant, torch.as_tensor(edit.value))
            elif isinstance(edit, ScaleChannels):
                self._set(edit.constant, edit.scaled(self.weight(edit.constant)))
            else:
                raise UsageError(
                    f"modules have no edit {type(edit).__name__}", code="edit-unknown",
                    expected=", ".join(sorted(kind.__name__ for kind in self.edits)), hint="another algorithm",
                )  # fmt: skip
        close_fast_paths(self.module)

    def _encode(self, edit: EncodeWeight) -> None:
        """All users of a tied parameter get the same buffers."""
        names = self._names(edit.constant)
        owner, parameter = self._owner(names[0])
        first = set_weight(owner, parameter, edit.tensor)
        for name in names[1:]:
            other, its_parameter = self._owner(name)
            if other is not owner or its_parameter != parameter:
                share_weight(other, its_parameter, first, parameter)

    def _quantize_value(self, edit: InsertQDQ | DynamicQuantize, layers: Mapping[str, ModuleLayer]) -> None:
        name, _, side = edit.value.rpartition(".")
        if name not in layers or side not in ("input", "output"):
            raise _unknown(edit.value)
        layer = layers[name]
        module = self.module.get_submodule(layer.module)
        fixed = None
        if isinstance(edit, InsertQDQ):
            device = _device(module)
            scale = torch.as_tensor(edit.scale, device=device)
            zero = None if edit.zero_point is None else torch.as_tensor(edit.zero_point, device=device)
            fixed = QParams(edit.grid, (), scale, zero)
        quantizer = ActivationQuantizer(edit.grid, layer.features, fixed)
        setattr(as_quantized(module), f"{side}_quantizer", quantizer)

    def _add_bias(self, edit: AddBias, layers: Mapping[str, ModuleLayer]) -> None:
        if edit.node not in layers:
            raise _unknown(edit.node)
        module: Any = self.module.get_submodule(layers[edit.node].module)
        before = module.bias
        added = torch.as_tensor(edit.bias, device=_device(module))
        dtype = before.dtype if before is not None else self._dtype(module)
        value = added if before is None else before.detach().float() + added
        module.register_parameter("bias", nn.Parameter(value.to(dtype), before is not None and before.requires_grad))

    def _dtype(self, module: nn.Module) -> torch.dtype:
        if isinstance(module, QuantizedLayer) and "weight" in module.stored:
            return module.stored["weight"].dtype
        weight: Tensor = module.weight  # type: ignore[assignment]
        return weight.dtype

    def _set(self, constant: str, value: Tensor) -> None:
        """New memory: the old may be the user's."""
        names = self._names(constant)
        owner, name = self._owner(names[0])
        before = owner._parameters.get(name)
        if before is None:
            owner._buffers[name] = value.to(owner._buffers[name])
            return
        parameter = nn.Parameter(value.to(before), before.requires_grad)
        for alias in names:
            other, its_name = self._owner(alias)
            other._parameters[its_name] = parameter

    def _names(self, constant: str) -> tuple[str, ...]:
        if constant not in self._constants:
            raise _unknown(constant)
        return self._constants[constant]

    def _owner(self, name: str) -> tuple[nn.Module, str]:
        path, _, parameter = name.rpartition(".")
        return self.module.get_submodule(path), parameter

    def session(self, *, observe: Mapping[str, Observer] | None = None, threads: int | None = None) -> ModuleSession:
        """Ready to run, in evaluation mode.

        Args:
            observe: functions by the name of a value; each gets every tensor of that value while the model runs.
                `fc1.call` gets both, the input and the output of a layer.
            threads: of the CPU.
        """
        return ModuleSession(self, observe or {}, threads)

    def run_layer(self, name: str, x: Tensor) -> Tensor:
        """The output of one layer alone."""
        if self._paths is None:
            self._paths = {layer.name: layer.module for layer in self.layers()}
        out: Tensor = self.module.get_submodule(self._paths[name])(x)
        return out

    def freeze(self, *, exact: bool = False) -> list[dict[str, Any]]:
        """Give every quantized layer its kernel; see `kernels.freeze`."""
        return freeze(self.module, exact=exact)

    def nbytes(self) -> int:
        """Bytes of all parameters and buffers that are saved, tied ones once."""
        return module_bytes(self.module)

    def save(self, path: Path) -> Path:
        """Modules are written by a checkpoint format."""
        raise UsageError(
            "a module is written by a checkpoint format",
            code="module-save",
            param="format",
            hint="{format=safetensors}",
        )

    def for_user(self) -> nn.Module:
        """The module."""
        return self.module


class ModuleSession:
    """A module in evaluation mode, with hooks; `close` puts everything back."""

    def __init__(self, model: ModuleModel, observe: Mapping[str, Observer], threads: int | None = None):
        self._model = model
        self._stack = ExitStack()
        self._stack.enter_context(_evaluating(model.module))
        if threads is not None:
            self._stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(threads)
        layers = {layer.name: layer for layer in model.layers()} if observe else {}
        for value, observer in observe.items():
            name, _, side = value.rpartition(".")
            if name not in layers or side not in ("input", "output", "call"):
                raise _unknown(value)
            module = model.module.get_submodule(layers[name].module)
            self._stack.callback(_add_hook(module, side, observer).remove)

    def run(self, inputs: Mapping[str, Any], where: str = "") -> RunResult:
        """One batch, by the names of `forward`'s parameters.

        Args:
            inputs: arrays or tensors.
            where: the sample, for errors.

        Raises:
            DataError: the model cannot take it.
        """
        return RunResult(named_outputs(self.call(inputs, where)))

    def call(self, inputs: Mapping[str, Any], where: str = "") -> Any:
        """What the module returns."""
        args, kwargs = call_arguments(inputs, self._model.info)
        device = _device(self._model.module)
        if device is not None and device.type != "cpu":
            args, kwargs = pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), (args, kwargs))
        try:
            with isolated():
                return self._model.module(*args, **kwargs)
        except (RuntimeError, IndexError, ValueError, TypeError, KeyError, AttributeError, AssertionError) as error:
            raise _refused(self._model.module, (args, kwargs), where, error) from error

    def kernels(self) -> None:
        """Not reported by PyTorch; `freeze` says what runs."""

    def close(self) -> None:
        """Remove the hooks, and put mode and buffers back."""
        self._stack.close()

    def __enter__(self) -> ModuleSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def copy_module(module: nn.Module) -> nn.Module:
    """A copy whose weights share their memory with the original's; all other tensors are its own.

    Modules, hooks and configurations are new. No forward writes to a matrix that is a parameter, so those are shared.
    Vectors are small and change in training, and a buffer may change in any forward: these are copied. What is one
    tensor in the original is one in the copy.

    Raises:
        ModelError: something in it cannot be copied.
    """
    memo: dict[int, Any] = {}
    for part in module.modules():
        for parameter in part._parameters.values():
            if parameter is not None and type(parameter) is nn.Parameter and id(parameter) not in memo:
                data = parameter.detach() if parameter.ndim > 1 else parameter.detach().clone()
                memo[id(parameter)] = twin = nn.Parameter(data, parameter.requires_grad)
                vars(twin).update(vars(parameter))
        for value in (*part._buffers.values(), *vars(part).values()):
            # `deepcopy` refuses results of computations that carry a gradient.
            if type(value) is Tensor and not value.is_leaf and id(value) not in memo:
                memo[id(value)] = value.detach().clone()
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        raise ModelError(
            f"the model cannot be copied: {type(error).__name__}: {str(error)[:200]}", code="model-copy",
            where=type(module).__name__, expected="a module that copy.deepcopy takes",
            hint="remove hooks, open files and handles from its attributes first",
        ) from error  # fmt: skip


def module_bytes(module: nn.Module) -> int:
    """Bytes of parameters and persistent buffers, each memory once; what kernels store included."""
    tensors: dict[Any, int] = {}
    total = 0
    for part in module.modules():
        own: list[Tensor] = [tensor for tensor in part._parameters.values() if tensor is not None]
        own += [
            b for name, b in part._buffers.items() if b is not None and name not in part._non_persistent_buffers_set
        ]
        if isinstance(part, QuantizedLayer) and part.kernel is not None:
            total += part.kernel.nbytes()
        tensors |= {(tensor.device, tensor.data_ptr(), tensor.shape): int(tensor.nbytes) for tensor in own}
    return total + sum(tensors.values())


def named_outputs(value: Any) -> dict[str, np.ndarray]:
    """The tensors that a module returns, by their place in it; key-value caches are left out."""
    outputs = {}
    for path, leaf in pytree.tree_flatten_with_path(value)[0]:
        name = pytree.keystr(path)
        if isinstance(leaf, Tensor) and "past_key_values" not in name:
            half = leaf.is_floating_point() and leaf.element_size() < 4
            array = leaf.detach().to("cpu", torch.float32 if half else leaf.dtype).numpy()
            outputs[name or "output"] = array.reshape(1) if array.ndim == 0 else array
    return outputs


def _refuse_traced(module: Any) -> None:
    if isinstance(module, torch.fx.GraphModule):
        raise UsageError(
            "a GraphModule has no layers that could be replaced: its weights are arguments of operators",
            code="module-traced", param="model", where=type(module).__name__, expected="the nn.Module it was made from",
            hint="quantize the module first, then export it; or save the program as .pt2",
        )  # fmt: skip
    if isinstance(module, torch.jit.ScriptModule):
        raise UsageError(
            "a TorchScript module is compiled already", code="module-traced", param="model",
            expected="the nn.Module it was made from", hint="quantize the module before torch.jit",
        )  # fmt: skip


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients, no key-value cache, encoder layers in parts; buffers are put back afterwards."""
    training = {part: part.training for part in module.modules()}
    buffers = [(part, dict(part._buffers), _copies(part)) for part in module.modules()]
    configs = [getattr(part, "config", None) for part in module.modules()]
    caching: list[Any] = [config for config in configs if getattr(config, "use_cache", False) is True]
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast_path)
        torch.backends.mha.set_fastpath_enabled(False)
        for config in {id(config): config for config in caching}.values():
            stack.callback(setattr, config, "use_cache", True)
            config.use_cache = False
        stack.callback(_put_back, training, buffers)
        module.eval()
        yield


def _copies(part: nn.Module) -> dict[str, Tensor]:
    if isinstance(part, QuantizedLayer | ActivationQuantizer):
        return {}
    return {name: buffer.detach().clone() for name, buffer in part._buffers.items() if buffer is not None}


def _put_back(training: Mapping[nn.Module, bool], buffers: Iterable[tuple[nn.Module, dict[str, Any], Any]]) -> None:
    for part, mode in training.items():
        part.training = mode
    for part, before, copies in buffers:
        if isinstance(part, QuantizedLayer | ActivationQuantizer):
            continue
        part._buffers.clear()
        part._buffers.update(before)
        for name, values in copies.items():
            if not torch.equal(before[name], values):
                before[name].copy_(values)


def _add_hook(module: nn.Module, side: str, observer: Observer) -> Any:
    if side == "output":
        return module.register_forward_hook(lambda _module, _args, out: observer(out))
    if side == "call":
        return module.register_forward_hook(
            lambda _module, args, kwargs, out: observer(_first(args, kwargs), out), with_kwargs=True
        )

    def on_input(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        observer(_first(args, kwargs))

    return module.register_forward_pre_hook(on_input, with_kwargs=True)


def _device(module: nn.Module) -> torch.device | None:
    return next((tensor.device for tensors in (module.parameters(), module.buffers()) for tensor in tensors), None)


def _first(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return args[0] if args else next(iter(kwargs.values()))


def _refused(module: nn.Module, arguments: Any, where: str, error: Exception) -> DataError:
    """A sample that the model's forward does not take."""
    tensors = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Tensor)]
    shapes = ", ".join(f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in tensors)
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    hint = "call the model with this sample alone; {transform} can change what it gets"
    has_table = any(isinstance(part, nn.Embedding) for part in module.modules())
    if has_table and any(tensor.is_floating_point() for tensor in tensors) and "ndices" in text:
        hint = "token ids are integers: `ids.long()` in the dataset or its collate_fn"
    elif (
        any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules()) and tensors and tensors[0].ndim < 3
    ):
        hint = "a convolution takes [batch, channels, …]: give samples all of their axes"
    return DataError(
        f"{type(module).__name__} cannot run the sample: {text[:300]}", code="model-run", where=where or None,
        expected=f"inputs that the model takes, not {shapes}" if shapes else "inputs that the model takes", hint=hint,
    )  # fmt: skip


def _unknown(name: str) -> UsageError:
    return UsageError(f"the module has nothing called {name!r}", code="edit-unknown", hint="names as in layers()")
