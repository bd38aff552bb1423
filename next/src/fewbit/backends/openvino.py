# SPDX-License-Identifier: Apache-2.0
"""OpenVINO models: the `.xml` is read without openvino."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.parsers import expat

from fewbit.backends._base import Edit, Model
from fewbit.backends._headers import describe_content, not_built, read_model_file, unreadable, with_batch_axes
from fewbit.backends._sidecar import numbers_in, on_unit_scale, read_sidecar_files
from fewbit.model_info import Dim, ModelInfo, TensorInfo, as_labels

_MOST_BYTES = 256 << 20
_DEEPEST = 64
_MOST_LAYERS = 5_000_000
_DTYPES = {
    "f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16", "i8": "int8", "i16": "int16",
    "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "boolean": "bool", "string": "str",
}  # fmt: skip
_PRECISIONS = {"fp16": "f16", "fp32": "f32", "fp64": "f64", "bool": "boolean"}
_RESIZE = {"standard": "stretch", "crop": "crop", "fit_to_window": "pad", "fit_to_window_letterbox": "pad"}
_TASKS = {
    "classification": "image-classification", "ssd": "object-detection", "detectionmodel": "object-detection",
    "segmentation": "segmentation", "maskrcnn": "segmentation",
}  # fmt: skip


class OpenVinoBackend:
    """Reads `.xml` files with their `.bin`, folders that hold `openvino_model.xml`, and `ov.Model` objects."""

    name = "openvino"
    suffixes = (".xml",)
    extra = "openvino"
    target = "openvino"
    edits: frozenset[type[Edit]] = frozenset()

    def matches(self, source: Any) -> bool:
        """By suffix or by the name of the type; openvino is not imported."""
        if isinstance(source, str | Path):
            return Path(source).suffix.lower() == ".xml" or (Path(source) / "openvino_model.xml").is_file()
        return any(base.__module__.startswith("openvino") and base.__name__ == "Model" for base in type(source).__mro__)

    def inspect(self, source: Any) -> ModelInfo:
        """Parameters, results and `model_info`; the `.bin` is not opened."""
        if not isinstance(source, str | Path):
            return _inspect_object(source)
        path = Path(source)
        return _inspect_file(path / "openvino_model.xml" if path.is_dir() else path, str(source))

    def load(self, source: Any) -> Model:
        """Not built yet."""
        raise not_built("OpenVINO", source)


@dataclass
class _Port:
    names: list[str]
    precision: str
    dims: list[str] = field(default_factory=list)


@dataclass
class _Layer:
    name: str
    type: str
    outputs: dict[str, _Port] = field(default_factory=dict)
    inputs: dict[str, _Port] = field(default_factory=dict)
    element_type: str = ""
    shape: str | None = None
    output_names: list[str] = field(default_factory=list)


class _Reader:
    """Collects parameters, results, output ports and `model_info` while the file streams through expat."""

    def __init__(self) -> None:
        self.layers: dict[str, _Layer] = {}
        self.sources: dict[str, tuple[str, str]] = {}
        self.info: dict[str, str] = {}
        self.types: set[str] = set()
        self.constant_types: set[str] = set()
        self._path: list[str] = []
        self._layer: _Layer | None = None
        self._port: _Port | None = None
        self._text = ""

    def parse(self, content: bytes) -> None:
        """Read a complete document; entities, deep nesting and endless layers are refused."""
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.StartDoctypeDeclHandler = self._refuse
        parser.Parse(content, True)

    def _refuse(self, *_: Any) -> None:
        raise ValueError("it has a document type, which no OpenVINO model has")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._path.append(tag)
        if len(self._path) > _DEEPEST or len(self.layers) > _MOST_LAYERS:
            raise ValueError("too many or too deeply nested elements")
        if len(self._path) == 1 and tag != "net":
            raise ValueError(f"its root element is <{tag[:40]}>, not <net>")
        element = self._path[1:]  # bodies of If and Loop have their own layers, further down
        if element == ["layers", "layer"]:
            self._layer = _Layer(attributes.get("name", ""), attributes.get("type", ""))
            self._layer.output_names = _split_names(attributes.get("output_names", ""))
            self.layers[attributes.get("id", str(len(self.layers)))] = self._layer
            self.types.add(self._layer.type)
        elif element == ["layers", "layer", "data"] and self._layer is not None:
            self._layer.element_type, self._layer.shape = attributes.get("element_type", ""), attributes.get("shape")
            if self._layer.type == "Const":
                self.constant_types.add(self._layer.element_type)
        elif element[:2] == ["layers", "layer"] and element[2:] in (["output", "port"], ["input", "port"]):
            assert self._layer is not None
            self._port = _Port(_split_names(attributes.get("names", "")), attributes.get("precision", ""))
            ports = self._layer.outputs if element[2] == "output" else self._layer.inputs
            ports[attributes.get("id", "")] = self._port
        elif element == ["edges", "edge"]:
            target = attributes.get("to-layer", "")
            if target in self.layers and self.layers[target].type == "Result":
                self.sources[target] = attributes.get("from-layer", ""), attributes.get("from-port", "")
        elif len(element) == 3 and element[:2] == ["rt_info", "model_info"]:
            self.info[tag] = attributes.get("value", "")
        self._text = ""

    def _end(self, tag: str) -> None:
        if tag == "dim" and self._port is not None:
            self._port.dims.append(self._text.strip())
        elif tag == "port":
            self._port = None
        self._path.pop()

    def _characters(self, text: str) -> None:
        if self._port is not None and len(self._text) < 64:  # a size; anything longer is none
            self._text += text


def _split_names(text: str) -> list[str]:
    r"""Tensor names; a comma inside a name is written `\,`."""
    return [name.replace("\\,", ",") for name in re.split(r"(?<!\\),", text) if name]


def _inspect_file(path: Path, source: str) -> ModelInfo:
    content = read_model_file(path, "OpenVINO", _MOST_BYTES)
    reader = _Reader()
    try:
        reader.parse(content)
    except (expat.ExpatError, ValueError) as error:
        content_type = None if content.lstrip().startswith(b"<?xml") else describe_content(content)
        raise unreadable(
            source, "OpenVINO", content_type or str(error), hint="ov.save_model(model, 'model.xml')"
        ) from error
    inputs = [_parameter(layer) for layer in reader.layers.values() if layer.type == "Parameter"]
    results = [(number, layer) for number, layer in reader.layers.items() if layer.type == "Result"]
    if not results:
        raise unreadable(source, "OpenVINO", "it has no outputs", hint="ov.save_model(model, 'model.xml')")
    weights = path.with_suffix(".bin")
    sidecar = read_sidecar_files(path)
    settings, labels, task = _from_model_info(reader.info)
    return ModelInfo(
        source=source,
        kind="OpenVINO",
        backend="openvino",
        size=len(content) + (weights.stat().st_size if weights.is_file() else 0),
        inputs=with_batch_axes(inputs),
        outputs=tuple(_result(number, layer, reader) for number, layer in results),
        labels=sidecar.labels or labels,
        task=task,
        preprocessing=sidecar.preprocessing or settings,
        preprocessing_source=sidecar.preprocessing_source or ("model metadata" if settings else None),
        tokenizer=sidecar.tokenizer,
        quantized=_quantized(reader),
        facts={
            "layers": len(reader.layers),
            "weights": weights.name if weights.is_file() else None,
            **_channels(reader),
        },
    )


def _parameter(layer: _Layer) -> TensorInfo:
    port = next(iter(layer.outputs.values()), _Port([], ""))
    name = port.names[0] if port.names else layer.name
    dtype = _DTYPES.get(layer.element_type)
    if layer.shape is None or layer.shape.strip() == "...":
        return TensorInfo(name, dtype, None)
    return TensorInfo(name, dtype, tuple(_dim(text) for text in layer.shape.split(",") if text.strip()))


def _result(number: str, layer: _Layer, reader: _Reader) -> TensorInfo:
    producer, port_number = reader.sources.get(number, ("", ""))
    outputs = reader.layers[producer].outputs if producer in reader.layers else {}
    port = outputs.get(port_number) or next(iter(layer.inputs.values()), _Port([], ""))
    names = layer.output_names or port.names
    precision = port.precision.lower()
    shape = tuple(_dim(text) for text in port.dims)
    dtype = _DTYPES.get(_PRECISIONS.get(precision, precision))
    return TensorInfo(names[0] if names else layer.name, dtype, shape, batch_axis=0 if shape else None)


def _dim(text: str) -> Dim:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _from_model_info(info: dict[str, str]) -> tuple[dict[str, Any], tuple[str, ...] | None, str | None]:
    """What the Model API stores: labels separated by spaces, mean and scale for pixels of 0..255."""
    labels = info.get("labels", "").split()
    settings = on_unit_scale(_numbers(info, "mean_values"), _numbers(info, "scale_values"), 255.0)
    if settings and info.get("resize_type") in _RESIZE:
        settings["resize"] = _RESIZE[info["resize_type"]]
    return settings, as_labels(labels), _TASKS.get(info.get("model_type", "").lower())


def _numbers(info: dict[str, str], key: str) -> tuple[float, ...] | None:
    return numbers_in(info[key]) if info.get(key, "").strip() else None


def _quantized(reader: _Reader) -> str | None:
    if reader.constant_types & {"u4", "i4", "nf4"}:
        return "int4"
    return "int8" if "FakeQuantize" in reader.types or "i8" in reader.constant_types else None


def _channels(reader: _Reader) -> dict[str, Any]:
    reverse = reader.info.get("reverse_input_channels", "").lower()
    return {"channels": "BGR"} if reverse in ("yes", "true", "1") else {}


def _inspect_object(model: Any) -> ModelInfo:
    inputs = [_of_port(port) for port in model.inputs]
    return ModelInfo(
        source=f"openvino.{type(model).__name__}",
        kind="OpenVINO",
        backend="openvino",
        inputs=with_batch_axes(inputs),
        outputs=tuple(_of_port(port) for port in model.outputs),
    )


def _of_port(port: Any) -> TensorInfo:
    name = min(port.names) if port.names else port.node.friendly_name
    partial = port.partial_shape
    shape: tuple[Dim, ...] | None = None
    if not partial.rank.is_dynamic:
        shape = tuple(None if dim.is_dynamic else int(dim.get_length()) for dim in partial)
    return TensorInfo(str(name), _DTYPES.get(port.element_type.get_type_name()), shape, batch_axis=0 if shape else None)


BACKEND = OpenVinoBackend()
