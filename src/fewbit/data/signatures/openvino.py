# SPDX-License-Identifier: Apache-2.0
"""OpenVINO: a `.xml` path, an `ov.Model` or a `CompiledModel`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewbit.data.signature import InputSpec, Signature
from fewbit.data.signatures._arrays import feed as feed
from fewbit.data.signatures._arrays import feed_item as feed_item
from fewbit.errors import DataError, require

_DTYPES = {
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "bf16": "bfloat16",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "boolean": "bool",
    "string": "str",
}


def accepts(model: object) -> bool:
    """Whether this is an OpenVINO model, by its suffix or its type's name."""
    if isinstance(model, str | Path):
        return str(model).lower().endswith(".xml")
    names = {base.__name__ for base in type(model).__mro__ if base.__module__.partition(".")[0] == "openvino"}
    return bool(names & {"Model", "CompiledModel"})


def read(model: Any) -> Signature:
    """The model's parameters in order.

    Raises:
        DataError: the file is missing, damaged or not in OpenVINO's form.
    """
    source = str(model) if isinstance(model, str | Path) else f"OpenVINO {type(model).__name__}"
    if isinstance(model, str | Path):
        model = _load(Path(model).expanduser())
    return Signature("openvino", tuple(_spec(port) for port in model.inputs), source=source)


def _load(path: Path) -> Any:
    openvino = require("openvino", extra="openvino", purpose="reading an OpenVINO model's inputs")
    try:
        if not path.is_file():
            raise OSError("there is no such file")
        return openvino.Core().read_model(str(path))
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().rpartition("\n")[2][:200]
        raise DataError(
            f"the model cannot be read: {reason}",
            code="model-unreadable",
            where=path,
            expected="an OpenVINO .xml with its .bin beside it",
            try_="convert it again: ov.save_model(model, 'model.xml')",
        ) from error


def _spec(port: Any) -> InputSpec:
    name = port.any_name if port.names else port.node.friendly_name
    partial = port.partial_shape
    shape: tuple[int | str | None, ...] | None = None
    if not partial.rank.is_dynamic:
        shape = tuple(None if axis.is_dynamic else int(axis.get_length()) for axis in partial)
    return InputSpec(str(name), shape, _DTYPES.get(port.element_type.get_type_name()))
