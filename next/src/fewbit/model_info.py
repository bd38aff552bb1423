# SPDX-License-Identifier: Apache-2.0
"""What is known of a model from its headers: inputs, outputs, labels, preprocessing. The data layer sees only this."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_MOST_LABELS, _MOST_TEXT = 1_000_000, 16 << 20
Dim = int | str | None
"""A size, the name of a free axis, or `None` for a free axis without a name."""


@dataclass(frozen=True)
class TensorInfo:
    """One input or output of a model.

    Args:
        name: as the model calls it.
        dtype: numpy's name, such as `float32`; `None` if unknown.
        shape: one entry per axis; `None` if the rank is unknown.
        batch_axis: the axis that counts samples; `None` if there is none or it is not known.
        required: whether the model can run without it.
    """

    name: str
    dtype: str | None = None
    shape: tuple[Dim, ...] | None = None
    batch_axis: int | None = 0
    required: bool = True

    def __str__(self) -> str:
        """`x: float32 [N, 3, 48, W]`."""
        shape = "" if self.shape is None else f" [{', '.join('?' if d is None else str(d) for d in self.shape)}]"
        return f"{self.name}: {self.dtype or 'any type'}{shape}"


@dataclass(frozen=True)
class ModelInfo:
    """What `Backend.inspect` reads without loading the model.

    Args:
        source: the path or name the user gave, or the class of an object.
        kind: what people call it: "ONNX", "OpenVINO", "LlamaForCausalLM".
        backend: the member of `backends/` that reads it.
        size: bytes of the model's files, or of its parameters; `None` if unknown.
        inputs: in the model's order.
        outputs: in the model's order.
        labels: class names in the model's order, if the model knows them.
        task: such as `image-classification`, if the model says so.
        preprocessing: image and text settings found next to the model or in its metadata, by option name.
        preprocessing_source: where these were found.
        tokenizer: folder with tokenizer files.
        quantized: how the weights are stored already, such as "gptq"; `None` for a float model.
        vocabulary: number of token embeddings, if the model has them.
        takes_tensors: it is called as `model(*args, **kwargs)` with tensors, not with a dict of arrays.
        takes_objects: one of its inputs may be any object: a list of images, or the complete batch.
        facts: anything else worth showing: layer counts, opset, architecture.
    """

    source: str
    kind: str
    backend: str
    size: int | None = None
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    labels: tuple[str, ...] | None = None
    task: str | None = None
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    preprocessing_source: str | None = None
    tokenizer: str | None = None
    quantized: str | None = None
    vocabulary: int | None = None
    takes_tensors: bool = False
    takes_objects: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)


def as_labels(value: Any) -> tuple[str, ...] | None:
    """Class names from a list, a mapping of numbers to names, or a text that holds one of these.

    >>> as_labels("{0: 'cat', 1: 'dog'}"), as_labels(["a", "b"]), as_labels({"1": "b", "0": "a"}), as_labels("cat,dog")
    (('cat', 'dog'), ('a', 'b'), ('a', 'b'), ('cat', 'dog'))
    """
    if isinstance(value, str):
        parsed = parse_text(value)
        if isinstance(parsed, str):
            separator = "\n" if "\n" in parsed.strip() else ","
            parsed = [label.strip() for label in parsed.strip().split(separator)]
        value = parsed
    if isinstance(value, Mapping):
        try:
            numbered = {int(key): str(name) for key, name in value.items()}
        except (TypeError, ValueError):
            return None
        if sorted(numbered) != list(range(len(numbered))):
            return None
        value = [numbered[index] for index in range(len(numbered))]
    if not isinstance(value, Sequence) or not 0 < len(value) <= _MOST_LABELS:
        return None
    labels = tuple(str(name) for name in value)
    generic = all(name == f"LABEL_{index}" for index, name in enumerate(labels))
    return None if generic or not all(labels) else labels


def parse_text(text: str) -> Any:
    """A number, list or dict written as JSON or as Python's repr; otherwise the text itself."""
    if len(text) > _MOST_TEXT:
        return ""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
