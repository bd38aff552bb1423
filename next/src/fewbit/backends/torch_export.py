# SPDX-License-Identifier: Apache-2.0
"""`.pt2` programs of `torch.export`: the archive's JSON is read; nothing is unpickled or executed, torch not imported.

NAME/models/model.json                    graph, inputs and outputs (torch 2.8 and newer)
NAME/data/weights/weight_0 …              raw tensors
serialized_exported_program.json          the same graph in archives of older versions
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from fewbit.backends._base import Edit, Model
from fewbit.backends._headers import describe_content, not_built, open_model_file, unreadable, with_batch_axes
from fewbit.backends._sidecar import read_sidecar_files
from fewbit.errors import ModelError
from fewbit.model_info import Dim, ModelInfo, TensorInfo

_MOST_JSON = 256 << 20
_MOST_FILES = 1_000_000
_GRAPH = re.compile(r"(?:[^/]+/)?models/(\w+)\.json|serialized_exported_program\.json", re.ASCII)
_SYMBOL = re.compile(r"(?:Symbol\('(\w+)'[^()]*\)|([a-z]+\d+))", re.ASCII)
# torch._export.serde.schema.ScalarType
_DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64", 12: "bool",
    13: "bfloat16", 28: "uint16", 34: "uint32", 35: "uint64",
}  # fmt: skip


class TorchExportBackend:
    """Reads `.pt2` files and `ExportedProgram` objects."""

    name = "torch_export"
    suffixes = (".pt2",)
    extra = "torch"
    target = "torch"
    edits: frozenset[type[Edit]] = frozenset()

    def matches(self, source: Any) -> bool:
        """By suffix or by the name of the type; torch is not imported."""
        if isinstance(source, str | Path):
            return Path(source).suffix.lower() == ".pt2"
        return any(base.__name__ == "ExportedProgram" for base in type(source).__mro__)

    def inspect(self, source: Any) -> ModelInfo:
        """Inputs and outputs from the archive's JSON."""
        return _inspect_file(Path(source), str(source)) if isinstance(source, str | Path) else _inspect_program(source)

    def load(self, source: Any) -> Model:
        """Not built yet."""
        raise not_built(".pt2", source)


def _inspect_file(path: Path, source: str) -> ModelInfo:
    size = path.stat().st_size if path.exists() else 0
    description, weights = _read_archive(path, source)
    try:
        inputs, outputs, facts = _signature(description)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        reason = f"its graph description is damaged ({type(error).__name__})"
        raise unreadable(source, ".pt2", reason, hint="torch.export.save(program, path) with a newer torch") from error
    sidecar = read_sidecar_files(path)
    return ModelInfo(
        source=source,
        kind="torch.export program",
        backend="torch_export",
        size=size,
        inputs=with_batch_axes(inputs),
        outputs=tuple(outputs),
        labels=sidecar.labels,
        preprocessing=sidecar.preprocessing,
        preprocessing_source=sidecar.preprocessing_source,
        tokenizer=sidecar.tokenizer,
        takes_tensors=True,
        facts=facts | {"weights": weights},
    )


def _read_archive(path: Path, source: str) -> tuple[dict[str, Any], int]:
    """The description of the graph, and the number of weights."""
    with open_model_file(path, ".pt2") as stream:
        first = stream.read(64)
        try:
            with zipfile.ZipFile(stream) as archive:
                return _read_members(archive, path, source)
        except (zipfile.BadZipFile, zipfile.LargeZipFile, OSError, EOFError, ValueError, NotImplementedError,
                RuntimeError, zlib.error) as error:  # fmt: skip
            reason = describe_content(first) if not first.startswith(b"PK") else None
            raise unreadable(source, ".pt2", reason or f"a damaged archive ({error})") from error


def _read_members(archive: zipfile.ZipFile, path: Path, source: str) -> tuple[dict[str, Any], int]:
    members = archive.infolist()
    if len(members) > _MOST_FILES or sum(member.file_size for member in members) > 4 * path.stat().st_size + _MOST_JSON:
        raise unreadable(source, ".pt2", "its files claim more bytes than the archive can hold")
    graphs = [member for member in members if _GRAPH.fullmatch(member.filename)]
    if not graphs:
        raise _other_archive(members, source)
    if len(graphs) > 1:
        names = ", ".join(member.filename for member in graphs[:4])
        raise unreadable(source, ".pt2", f"it holds several programs: {names}", hint="save one program per file")
    if graphs[0].file_size > _MOST_JSON:
        raise unreadable(source, ".pt2", f"a graph description of {graphs[0].file_size:,} bytes")
    with archive.open(graphs[0]) as member:
        description = orjson.loads(member.read(_MOST_JSON))
    if not isinstance(description, dict):
        raise unreadable(source, ".pt2", "its graph description is no JSON object")
    return description, sum("/weights/weight_" in member.filename for member in members)


def _other_archive(members: list[zipfile.ZipInfo], source: str) -> ModelError:
    names = [member.filename for member in members]
    if any(name.endswith("data.pkl") for name in names):
        return ModelError(
            "the file holds Python pickles, which are not opened because they can run code", code="model-unsafe",
            where=source, expected="an archive of torch.export.save", hint="torch.export.save(program, 'model.pt2')",
        )  # fmt: skip
    if any("aotinductor" in name for name in names):
        return unreadable(source, ".pt2", "it holds compiled code only", hint="torch.export.save(program, 'model.pt2')")
    return unreadable(source, ".pt2", "a zip archive without a program", hint="torch.export.save(program, 'model.pt2')")


def _signature(description: Mapping[str, Any]) -> tuple[list[TensorInfo], list[TensorInfo], dict[str, Any]]:
    """User inputs by name, keyword inputs by the name they are called with, and user outputs."""
    module = description["graph_module"]
    values = module["graph"]["tensor_values"]
    inputs = [
        _tensor(spec["user_input"]["arg"], values)
        for spec in module["signature"]["input_specs"]
        if "user_input" in spec
    ]
    outputs = [
        _tensor(spec["user_output"]["arg"], values)
        for spec in module["signature"]["output_specs"]
        if "user_output" in spec
    ]
    positional, keywords = _call(module)
    if len(keywords) == len(inputs) - positional:
        renamed = [TensorInfo(name, info.dtype, info.shape) for name, info in zip(keywords, inputs[positional:])]
        inputs = inputs[:positional] + renamed
    version = description.get("torch_version")
    facts = {"positional": positional, "nodes": len(module["graph"]["nodes"])}
    return inputs, outputs, facts | ({"torch": version} if isinstance(version, str) else {})


def _tensor(argument: Mapping[str, Any], values: Mapping[str, Any]) -> TensorInfo:
    """A tensor, with shape and dtype; a symbolic number has a name only, a constant not even that."""
    if "as_tensor" not in argument:
        names = [value.get("name") for value in argument.values() if isinstance(value, Mapping)]
        name = next((name for name in names if isinstance(name, str)), "")
        return TensorInfo(name or "constant", batch_axis=None, required=bool(name))
    name = str(argument["as_tensor"]["name"])
    value = values[name]
    shape = tuple(_size(size) for size in value["sizes"])
    return TensorInfo(name, _DTYPES.get(value["dtype"]), shape, batch_axis=0 if shape else None)


def _size(size: Mapping[str, Any]) -> Dim:
    if "as_int" in size:
        return int(size["as_int"])
    symbol = _SYMBOL.fullmatch(str(size.get("as_expr", {}).get("expr_str", "")).strip())
    return (symbol[1] or symbol[2]) if symbol else None


def _call(module: Mapping[str, Any]) -> tuple[int, list[str]]:
    """How many inputs go by place, and the names of the rest, from the tree of arguments."""
    (root,) = [entry for entry in module["module_call_graph"] if entry["fqn"] == ""]
    _, tree = orjson.loads(root["signature"]["in_spec"])
    positional, keywords = tree["children_spec"]
    names = keywords.get("context")
    names = orjson.loads(names) if isinstance(names, str) else names
    return _leaves(positional), [str(name) for name in names or ()]


def _leaves(tree: Mapping[str, Any]) -> int:
    if tree["type"] is None:
        return 1
    return sum(_leaves(child) for child in tree["children_spec"])


def _inspect_program(program: Any) -> ModelInfo:
    """An `ExportedProgram` in memory."""
    nodes = {node.name: node.meta.get("val") for node in program.graph.nodes}
    inputs = [_of_value(name, nodes.get(name)) for name in program.graph_signature.user_inputs if isinstance(name, str)]
    outputs = [
        _of_value(name, nodes.get(name)) for name in program.graph_signature.user_outputs if isinstance(name, str)
    ]
    _, keywords = program.call_spec.in_spec.children()
    positional, names = len(inputs) - keywords.num_leaves, list(keywords.context or ())
    if len(names) == keywords.num_leaves:
        renamed = [TensorInfo(name, info.dtype, info.shape) for name, info in zip(names, inputs[positional:])]
        inputs = inputs[:positional] + renamed
    return ModelInfo(
        source="ExportedProgram",
        kind="torch.export program",
        backend="torch_export",
        inputs=with_batch_axes(inputs),
        outputs=tuple(outputs),
        takes_tensors=True,
        facts={"positional": positional},
    )


def _of_value(name: str, value: Any) -> TensorInfo:
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return TensorInfo(name, batch_axis=None)
    shape = tuple(int(size) if isinstance(size, int) else str(size) for size in value.shape)
    return TensorInfo(name, str(value.dtype).removeprefix("torch."), shape, batch_axis=0 if shape else None)


BACKEND = TorchExportBackend()
