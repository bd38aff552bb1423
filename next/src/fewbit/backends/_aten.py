# SPDX-License-Identifier: Apache-2.0
"""Programs of `torch.export` as neutral graphs: constants under the module's own names, nodes one by one.

`_aten_operators` knows the operators. torch is imported when a program is read.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fewbit.backends import _aten_movement  # noqa: F401  (registers its translations)
from fewbit.backends._aten_operators import TRANSLATIONS, Call
from fewbit.graph.ir import Constant, Graph, Node, Value

if TYPE_CHECKING:
    import torch
    from torch import fx
    from torch.export import ExportedProgram

# These look at shapes, not at data.
_SHAPE_OPERATORS = ("sym_size", "sym_stride", "sym_numel", "sym_constrain_range", "_assert_tensor_metadata")


def read_program(
    program: ExportedProgram, *, prefix: str = "", constants: Mapping[str, Constant] | None = None
) -> Graph:
    """The neutral graph of an exported program.

    Args:
        program: from `torch.export.export`, best under `torch.no_grad()`, or gradient contexts become opaque nodes.
        prefix: put before every name, `"model.layers.0."` if a submodule was exported.
        constants: by full name, if the program is a part of a module and some are known; see `tied_constants`.
    """
    from torch.export.graph_signature import InputKind

    program = _functional(program)
    tensors = {**program.state_dict, **program.constants}
    names, own = {}, {}
    for spec in program.graph_signature.input_specs:
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            name = names[spec.arg.name] = f"{prefix}{spec.target}"
            # Tables that are computed when a module is built are not saved with it: an edit would be lost.
            own[name] = tensors[spec.target], spec.kind == InputKind.PARAMETER or bool(spec.persistent)
    return _Reader(program.graph, names, {**tied_constants(own), **(constants or {})}, prefix).graph()


def read_graph_module(module: fx.GraphModule, *, prefix: str = "") -> Graph:
    """The neutral graph of an unlifted program, such as `program.module()`; its nodes must know their shapes."""
    stored = set(module.state_dict())
    names, tensors = {}, {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            tensor = operator.attrgetter(node.target)(module)
            if hasattr(tensor, "dtype"):
                names[node.name] = prefix + node.target
                tensors[prefix + node.target] = tensor, node.target in stored
    return _Reader(module.graph, names, tied_constants(tensors), prefix).graph()


def tied_constants(tensors: Mapping[str, tuple[torch.Tensor, bool]]) -> dict[str, Constant]:
    """One constant per tensor, under each of its names: tied parameters have several.

    Args:
        tensors: by name: the tensor, and whether an edit of it is saved with the model.
    """
    by_place: dict[Any, list[str]] = {}
    places: dict[int, set[Any]] = {}
    for name, (tensor, _) in tensors.items():
        storage = tensor.untyped_storage()._cdata
        place = (storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        by_place.setdefault(place, []).append(name)
        places.setdefault(storage, set()).add(place)
    constants = {}
    for place, (first, *others) in by_place.items():
        tensor, stored = tensors[first]
        # Memory that is also part of another tensor, a transposed one say: an edit would change both.
        alone = len(places[place[0]]) == 1
        constant = Constant(first, place[2], _dtype(tensor), _reader(tensor), stored and alone, tuple(others))
        constants.update(dict.fromkeys([first, *others], constant))
    return constants


def _functional(program: ExportedProgram) -> ExportedProgram:
    """The program without einsum and without operators that write to their input, which torch translates.

    That takes as long as the export, so an operator that changes a tensor nothing else reads is left as it is.
    """
    import torch

    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    einsum = torch.ops.aten.einsum.default
    table: dict[Any, Any] = {}
    if any(node.target is einsum for node in calls):
        table[einsum] = torch.export.default_decompositions()[einsum]
    if not table and all(_is_functional(node) for node in calls):
        return program
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 about its own tree specifications
        decomposed: ExportedProgram = program.run_decompositions(table)
        return decomposed


def _is_functional(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return True
    if not schema.name.endswith("_") or not node.args or not hasattr(node.args[0], "users"):
        return False
    changed: fx.Node = node.args[0]  # type: ignore[assignment]
    producer = getattr(changed.target, "_schema", None)
    if changed.op != "call_function" or producer is None or len(changed.users) > 1:
        return False
    is_view = any(result.alias_info is not None for result in producer.returns)
    return not is_view or (producer.is_mutable and _is_functional(changed))


class _Reader:
    """Reads one graph.

    Args:
        source: the nodes.
        names: the full name of each constant, by the node that stands for it.
        constants: by full name; tied ones under each of theirs.
        prefix: put before every name.
    """

    def __init__(self, source: fx.Graph, names: Mapping[str, str], constants: Mapping[str, Constant], prefix: str):
        self._source, self.prefix = source, prefix
        self.values: dict[str, Value] = {}
        self.nodes: list[Node] = []
        self._names = {node: constants[name].name for node, name in names.items()}
        self.constants = {constants[name].name: constants[name] for name in names.values()}

    def graph(self) -> Graph:
        """The neutral graph."""
        import torch

        inputs: list[str] = []
        outputs: tuple[str, ...] = ()
        for node in self._source.nodes:
            value = node.meta.get("val")
            if node.op == "placeholder" and node.name not in self._names and isinstance(value, torch.Tensor):
                inputs.append(self._add_value(node.name, value))
            elif node.op == "output":
                outputs = tuple(name for name in map(self.name_of, _leaves(node.args)) if name is not None)
            elif node.op == "call_function" and node.target is not operator.getitem:
                self._add_call(node, value)
        return Graph(tuple(inputs), outputs, tuple(self.nodes), self.values, self._read_constants(outputs))

    def name_of(self, argument: Any) -> str | None:
        """The value or constant behind an argument; `None` for anything but a tensor."""
        return self._names.get(argument.name) if hasattr(argument, "all_input_nodes") else None

    def label_of(self, inputs: Iterable[str | None], scope: str) -> str:
        """A name for people: the module of a weight; the weight itself if its module calls it otherwise."""
        constants = [self.constants[name] for name in inputs if name in self.constants]
        names = [name for constant in constants[:1] for name in (constant.name, *constant.aliases)]
        if not names or names[0].startswith("literal:"):
            return scope
        own = [name for name in names if name.rpartition(".")[0] == scope]  # of tied weights that of this module
        return (own or names)[0].removesuffix(".weight")

    def add_literal(self, number: float) -> str:
        """A number inside an operator, as a constant."""
        name = f"literal:{number!r}"
        if name not in self.constants:
            self.constants[name] = Constant(name, (), "float32", lambda: np.asarray(number), stored=False)
        return name

    def _read_constants(self, outputs: Iterable[str]) -> dict[str, Constant]:
        read = {name for node in self.nodes for name in node.reads} | {*outputs}
        return {name: constant for name, constant in self.constants.items() if name in read}

    def _add_value(self, name: str, tensor: torch.Tensor) -> str:
        unique = self.prefix + name if self.prefix + name not in self.constants else f"{self.prefix}{name}:0"
        sizes = tuple(tensor.shape)
        example = tuple(_hint(size) for size in sizes)
        known = tuple(size for size in example if size is not None)
        self.values[unique] = Value(
            unique,
            tuple(size if isinstance(size, int) else str(size) for size in sizes),
            _dtype(tensor),
            known if len(known) == len(sizes) else None,
        )
        self._names[name] = unique
        return unique

    def add_temporary(self, name: str, shape: tuple[int, ...], dtype: str) -> str:
        """A value between the nodes that one operator becomes."""
        unique = self.prefix + name
        self.values[unique] = Value(unique, shape, dtype)
        return unique

    def _add_call(self, node: fx.Node, value: Any) -> None:
        import torch

        schema = getattr(node.target, "_schema", None)
        native = schema.name.split("::")[-1].removesuffix("_") if schema is not None else str(node.target)
        results = list(value) if isinstance(value, tuple | list) else [value]
        tensors = [result for result in results if isinstance(result, torch.Tensor)]
        reads = [name for name in map(self.name_of, node.all_input_nodes) if name is not None]
        if not tensors and (native in _SHAPE_OPERATORS or not reads):
            return
        outputs = self._add_results(node, results)
        scope = (self.prefix + _scope(node)).rstrip(".")
        call = Call(self, node, native, _arguments(node, schema), outputs, scope)
        translate = TRANSLATIONS.get(native) if len(tensors) == len(results) else None
        if translate is None or not translate(call):
            call.emit("opaque", tuple(reads))

    def _add_results(self, node: fx.Node, results: list[Any]) -> tuple[str, ...]:
        """Values for the results of a node; several are named `node#0`, `node#1`."""
        import torch

        if not isinstance(node.meta.get("val"), tuple | list):
            return (self._add_value(node.name, results[0]),) if isinstance(results[0], torch.Tensor) else ()
        names: dict[int, str] = {}
        for index, result in enumerate(results):
            if isinstance(result, torch.Tensor):
                names[index] = self._add_value(f"{node.name}#{index}", result)
        for user in node.users:
            if user.target is operator.getitem and user.args[1] in names:
                self._names[user.name] = names[user.args[1]]  # type: ignore[index]
        return tuple(names.values())


def _arguments(node: fx.Node, schema: Any) -> dict[str, Any]:
    """Arguments by name, defaults included."""
    parameters = enumerate(schema.arguments) if schema is not None else ()
    return {
        parameter.name: node.args[index]
        if index < len(node.args)
        else node.kwargs.get(parameter.name, parameter.default_value)
        for index, parameter in parameters
    }


def _scope(node: fx.Node) -> str:
    """The path of the innermost module that the node belongs to."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, tuple | list):
        return [leaf for branch in tree for leaf in _leaves(branch)]
    if isinstance(tree, Mapping):
        return [leaf for branch in tree.values() for leaf in _leaves(branch)]
    return [tree]


def _hint(size: Any) -> int | None:
    """The size in the sample input that was exported."""
    if isinstance(size, int):
        return size
    return int(size.node.hint) if size.node.has_hint() else None


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _reader(tensor: torch.Tensor) -> Any:
    def read() -> np.ndarray:
        import torch

        half = tensor.is_floating_point() and tensor.element_size() < 4
        array: np.ndarray = tensor.detach().to("cpu", torch.float32 if half else tensor.dtype).numpy()
        return array

    return read
