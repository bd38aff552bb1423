# SPDX-License-Identifier: Apache-2.0
"""The neutral graph of a PyTorch module: its layers always, what connects them if `torch.export` can trace it.

A module that cannot be exported as one piece is read part by part: blocks, then attention and MLP, as far as they can
be exported. Every layer that is missing then is listed alone, with an input and an output that nothing else has, so
that analysis has nothing to connect. The module itself is never changed.

Nodes of layers and norms have the module's path as their name if it is called once, so that edits can name them.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fewbit.backends._aten import read_program, tied_constants
from fewbit.errors import UsageError
from fewbit.graph.edits import AddBias, Edit, ScaleChannels, SetConstant
from fewbit.graph.ir import Constant, Graph, Node, Value
from fewbit.graph.layers import layers
from fewbit.rng import isolated


@dataclass(frozen=True)
class ModuleCall:
    """The arguments of one call of a module."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None

    def __call__(self, module: nn.Module) -> Any:
        """Call a module with them."""
        return module(*self.args, **(self.kwargs or {}))


def module_graph(module: nn.Module, example: ModuleCall | None = None, *, prefix: str = "") -> Graph:
    """The graph of a module.

    Args:
        module: never changed.
        example: a call, of at least two samples if the module allows; without it, layers are only listed.
        prefix: put before every name: the path of the module in a model.

    Returns:
        A graph whose `layers` are all that can be quantized; `notes` say what could not be read, and why.
    """
    constants = tied_constants({f"{prefix}{name}": (tensor, stored) for name, tensor, stored in _named_tensors(module)})
    listing, notes = _list_layers(module, constants, prefix)
    parts, failures = list[Graph](), list[str]()
    if example is not None:
        with _exportable(module):
            parts, failures = _read(module, example, constants, prefix)
    graph = _merge(parts, listing, constants)
    listed = {layer.weight for layer in layers(graph)}
    matrices = [constants[prefix + name] for name, _ in module.named_parameters() if prefix + name in constants]
    unknown = [matrix.name for matrix in matrices if len(matrix.shape) > 1 and matrix.name not in listed]
    if unknown:
        more = " …" if len(unknown) > 8 else ""
        notes.append(f"parameters of no known layer stay as they are: {', '.join(unknown[:8])}{more}")
    return replace(graph, notes=(*failures, *notes))


def export_module(module: nn.Module, example: ModuleCall) -> torch.export.ExportedProgram:
    """`torch.export` with what language models need: no gradients, no caches, experts as plain products."""
    with _exportable(module):
        return _export(module, example)


def edited_runner(
    module: nn.Module, example: ModuleCall, graph: Graph | None = None, *, prefix: str = ""
) -> Callable[[Sequence[Edit]], list[np.ndarray]]:
    """A function that runs a module with edits of its constants, for `check_families`; the module is not changed.

    Args:
        module: as it is.
        example: a sample other than the one its graph was read with.
        graph: of the module; needed for `AddBias`.
        prefix: of the names in the graph.
    """
    tensors = {f"{prefix}{name}": tensor for name, tensor, _ in _named_tensors(module)}
    constants = tied_constants({name: (tensor, True) for name, tensor in tensors.items()})

    def run(edits: Sequence[Edit]) -> list[np.ndarray]:
        changed, biases = dict[str, Tensor](), dict[str, Tensor]()
        for edit in edits:
            if isinstance(edit, AddBias) and graph is not None:
                biases[graph.by_name[edit.node].label.removeprefix(prefix)] = torch.as_tensor(edit.bias)
            elif isinstance(edit, ScaleChannels | SetConstant) and edit.constant in tensors:
                current = changed.get(edit.constant, tensors[edit.constant]).detach()
                scaled = edit.scaled(current) if isinstance(edit, ScaleChannels) else torch.as_tensor(edit.value)
                constant = constants[edit.constant]
                names = (constant.name, *constant.aliases) if edit.constant == constant.name else (edit.constant,)
                changed |= dict.fromkeys(names, scaled.to(current))
            else:
                raise UsageError(
                    f"a trial run cannot apply {edit!r}",
                    code="edit-unknown",
                    expected="SetConstant, ScaleChannels and AddBias of the module's own layers",
                    hint="apply the edit to the model",
                )
        with _exportable(module), isolated(), ExitStack() as stack:
            for path, bias in biases.items():
                handle = module.get_submodule(path).register_forward_hook(_adding(bias))
                stack.callback(handle.remove)
            arguments = dict(example.kwargs or {})
            own = {name.removeprefix(prefix): tensor for name, tensor in changed.items()}
            outputs = torch.func.functional_call(module, own, example.args, arguments, tie_weights=False)
        return [_array(leaf) for leaf in torch.utils._pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]

    return run


def _adding(bias: Tensor) -> Callable[..., Tensor]:
    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output + bias.to(output)

    return hook


def _array(tensor: Tensor) -> np.ndarray:
    half = tensor.is_floating_point() and tensor.element_size() < 4
    array: np.ndarray = tensor.detach().to("cpu", torch.float32 if half else tensor.dtype).numpy()
    return array


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """Parameters and buffers under all their names, and whether they are saved with the module."""
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if not isinstance(parameter, nn.parameter.UninitializedParameter):
            yield name, parameter, True
    for path, owner in module.named_modules(remove_duplicate=False):
        for name, buffer in owner._buffers.items():
            if buffer is not None:
                yield f"{path}.{name}" if path else name, buffer, name not in owner._non_persistent_buffers_set


# Export.


def _export(module: nn.Module, example: ModuleCall) -> torch.export.ExportedProgram:
    arguments = dict(example.kwargs or {})
    # A cache is no tensor, and what it remembers would be part of the program.
    arguments |= {name: None for name in arguments if name.startswith("past_key_value")}
    arguments |= {name: False for name in arguments if name == "use_cache"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module, example.args, arguments, strict=False)


@contextmanager
def _exportable(module: nn.Module) -> Iterator[None]:
    """A module in a state in which torch can trace it, put back afterwards."""
    training = {submodule: submodule.training for submodule in module.modules()}
    configs = {id(c): c for submodule in module.modules() for c in _nested_configs(getattr(submodule, "config", None))}
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast_path)
        # The fused encoder layer is one operator in which no layer can be seen.
        torch.backends.mha.set_fastpath_enabled(False)
        for config in configs.values():
            for name, value in (("use_cache", False), ("_experts_implementation_internal", "batched_mm")):
                # By __dict__: transformers checks what is set by its own names.
                if name in config.__dict__ and config.__dict__[name] != value:
                    stack.callback(config.__dict__.__setitem__, name, config.__dict__[name])
                    config.__dict__[name] = value
        stack.callback(_restore_training, training)
        module.eval()
        yield


def _restore_training(training: Mapping[nn.Module, bool]) -> None:
    for submodule, mode in training.items():
        submodule.training = mode


def _nested_configs(config: Any) -> Iterator[Any]:
    """A configuration of transformers, and those inside it."""
    if not hasattr(config, "__dict__"):
        return
    yield config
    for value in vars(config).values():
        if hasattr(value, "use_cache") or hasattr(value, "_experts_implementation"):
            yield from _nested_configs(value)


def _read(
    module: nn.Module, example: ModuleCall, constants: Mapping[str, Constant], prefix: str
) -> tuple[list[Graph], list[str]]:
    """Graphs of the largest parts that can be exported, and why the others cannot."""
    try:
        return [read_program(_export(module, example), prefix=prefix, constants=constants)], []
    except Exception as error:
        reasons = [f"{prefix.rstrip('.') or type(module).__name__} cannot be exported: {_first_line(error)}"]
    parts: list[Graph] = []
    try:
        calls = _captured_calls(module, example)
    except Exception as error:
        return [], [*reasons, f"and it does not run: {_first_line(error)}"]
    for path, child in _outermost(module, calls):
        more, failures = _read_part(child, path, calls, constants, prefix)
        parts += more
        reasons += failures
    return parts, reasons


def _read_part(
    module: nn.Module, path: str, calls: Mapping[str, ModuleCall], constants: Mapping[str, Constant], prefix: str
) -> tuple[list[Graph], list[str]]:
    try:
        program = _export(module, calls[path])
        return [read_program(program, prefix=f"{prefix}{path}.", constants=constants)], []
    except Exception as error:
        reasons = [f"{prefix}{path} cannot be exported: {_first_line(error)}"]
    parts: list[Graph] = []
    inner = {name.removeprefix(f"{path}."): call for name, call in calls.items() if name.startswith(f"{path}.")}
    for name, child in _outermost(module, inner):
        more, failures = _read_part(child, f"{path}.{name}", calls, constants, prefix)
        parts += more
        reasons += failures
    return parts, reasons


def _outermost(module: nn.Module, calls: Mapping[str, ModuleCall]) -> Iterator[tuple[str, nn.Module]]:
    """The submodules that are called and have layers to connect, none inside another; lists are looked into."""
    for name, child in module.named_children():
        if name in calls:
            if any(True for _ in child.children()):
                yield name, child
        else:
            inner = {path.removeprefix(f"{name}."): call for path, call in calls.items() if path.startswith(f"{name}.")}
            for path, grandchild in _outermost(child, inner):
                yield f"{name}.{path}", grandchild


def _captured_calls(module: nn.Module, example: ModuleCall) -> dict[str, ModuleCall]:
    """The first call of every submodule in one forward pass."""
    calls: dict[str, ModuleCall] = {}

    def hook_for(path: str) -> Callable[..., None]:
        def hook(submodule: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            calls.setdefault(path, ModuleCall(args, kwargs))

        return hook

    handles = [
        submodule.register_forward_pre_hook(hook_for(path), with_kwargs=True)
        for path, submodule in module.named_modules()
        if path
    ]
    try:
        with isolated():
            example(module)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _first_line(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:200]}"


# Layers without connections.


def _list_layers(module: nn.Module, constants: Mapping[str, Constant], prefix: str) -> tuple[list[Node], list[str]]:
    """One node per layer that could be quantized, and the reasons why others cannot."""
    nodes, notes = [], []
    for path, owner in module.named_modules():
        for parameter, op, attrs in _weights_of(owner):
            name = f"{prefix}{path}.{parameter}" if path else f"{prefix}{parameter}"
            reason = _reason_against(owner, parameter)
            if reason is not None:
                notes.append(f"{name} stays as it is: {reason}")
                continue
            label = name.removesuffix(".weight")
            bias = f"{name.removesuffix('weight')}bias" if name.endswith(".weight") or name == "weight" else ""
            inputs = [f"{label}.input", constants[name].name]
            if op == "gather":
                inputs.reverse()
            elif bias in constants:
                inputs.append(constants[bias].name)
            native = type(owner).__name__
            outputs, scope = (f"{label}.output",), prefix + path
            nodes.append(Node(label, op, tuple(inputs), outputs, attrs, native=native, scope=scope, label=label))
    return nodes, notes


def _weights_of(owner: nn.Module) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The weights that a module multiplies by: parameter, operator, attributes."""
    if isinstance(owner, nn.Linear):
        yield "weight", "matmul", {"transpose_b": True}
    elif isinstance(owner, nn.modules.conv._ConvNd):
        letters = "DHW"[-len(owner.kernel_size) :]
        order = "IO" if owner.transposed else "OI"
        op = "conv_transpose" if owner.transposed else "conv"
        yield "weight", op, {"data": "NC" + letters, "weight": order + letters, "groups": owner.groups}
    elif isinstance(owner, nn.Embedding | nn.EmbeddingBag):
        yield "weight", "gather", {"axis": 0}
    elif isinstance(owner, nn.MultiheadAttention):
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            if getattr(owner, name, None) is not None:
                yield name, "matmul", {"transpose_b": True}
    elif isinstance(owner, nn.RNNBase | nn.RNNCellBase):
        for name in owner._parameters:
            if name.startswith("weight_"):
                yield name, "matmul", {"transpose_b": True}
    elif is_transposed_linear(owner):
        yield "weight", "matmul", {"transpose_b": False}


def is_transposed_linear(module: nn.Module) -> bool:
    """Whether a module is the linear layer of transformers that stores its weight as [in, out]."""
    weight = getattr(module, "weight", None)
    return type(module).__name__ == "Conv1D" and isinstance(weight, Tensor) and weight.ndim == 2


def _reason_against(owner: nn.Module, parameter: str) -> str | None:
    """Why a weight cannot be replaced, with what to do about it."""
    weight = owner._parameters.get(parameter)
    if weight is None:
        return (
            "it is computed in every call by a parametrization, weight norm or pruning hook; make it permanent with "
            "torch.nn.utils.parametrize.remove_parametrizations, remove_weight_norm or prune.remove"
        )
    if isinstance(weight, nn.parameter.UninitializedParameter):
        return "it has no shape yet; call the module once"
    if type(weight) not in (nn.Parameter, Tensor):
        return f"it is a {type(weight).__name__}, not a plain parameter"
    if weight.numel() == 0:
        return "it is empty"
    if not weight.is_floating_point():
        return f"it is {str(weight.dtype).removeprefix('torch.')}, not float"
    return None


def _merge(parts: Sequence[Graph], listing: Sequence[Node], constants: Mapping[str, Constant]) -> Graph:
    """Graphs of parts side by side, and the layers that none of them has."""
    nodes = _named_by_module([node for part in parts for node in part.nodes], constants)
    values = {name: value for part in parts for name, value in part.values.items()}
    used = {name: constant for part in parts for name, constant in part.constants.items()}
    covered = {(layer.weight, layer.op) for part in parts for layer in layers(part)}
    inputs = [name for part in parts for name in part.inputs]
    outputs = [name for part in parts for name in part.outputs]
    for node in listing:
        weight = node.inputs[0] if node.op == "gather" else node.inputs[1]
        assert weight is not None
        if (weight, node.op) in covered:
            continue
        (own_input,) = [name for name in node.inputs[:2] if name is not None and name not in constants]
        dtype = "int64" if node.op == "gather" else constants[weight].dtype
        values |= {own_input: Value(own_input, dtype=dtype)}
        values |= {node.outputs[0]: Value(node.outputs[0], dtype=constants[weight].dtype)}
        used |= {name: constants[name] for name in node.reads if name in constants}
        inputs.append(own_input)
        outputs += node.outputs
        nodes.append(node)
    return Graph(tuple(inputs), tuple(outputs), tuple(nodes), values, used)


def _named_by_module(nodes: Sequence[Node], constants: Mapping[str, Constant]) -> list[Node]:
    """Nodes that read parameters, under the names of their modules."""
    own = Counter(node.label for node in nodes if not constants.keys().isdisjoint(node.reads))
    taken = {node.name for node in nodes}
    return [
        replace(node, name=node.label)
        if own[node.label] == 1 and node.label not in taken and not constants.keys().isdisjoint(node.reads)
        else node
        for node in nodes
    ]


__all__ = ["ModuleCall", "edited_runner", "export_module", "is_transposed_linear", "module_graph"]
