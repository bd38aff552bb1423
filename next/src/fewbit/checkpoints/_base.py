# SPDX-License-Identifier: Apache-2.0
"""The protocol of a checkpoint format. A file here defines `CHECKPOINT`."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.ops import Array
from fewbit.numerics.qtensor import QTensor


@dataclass(frozen=True)
class LayerFormat:
    """What one layer becomes.

    Args:
        weight: the grid of its weight.
        activation: the grid of its input if that is quantized at run time; `None` for weights only.
    """

    weight: QuantizationGrid
    activation: QuantizationGrid | None = None


@dataclass(frozen=True)
class NamedTensor:
    """One tensor of a model: as it was in the source, or quantized.

    Args:
        name: as in the source files.
        value: an array, or a `QTensor` of shape [out, in], or what a format's `stored` made of one.
        layer: the layer that a quantized weight belongs to.
    """

    name: str
    value: Array | QTensor | Any
    layer: str | None = None


@dataclass(frozen=True, eq=False)
class CheckpointJob:
    """Everything a format needs besides the tensors.

    Args:
        source: the Hugging Face folder with configuration and tokenizer.
        layers: every linear layer by name, `None` for those left in float.
        dtype: of the tensors that stay in float, such as "bfloat16"; `None` keeps each as it is.
        facts: for the model card and metadata.
        preset: a type of GGUF, fp16 or bf16 for tensors that arrive in float; empty to keep them as they are.
        keep: names of tensors that stay as they are whatever the preset.
    """

    source: Path
    layers: Mapping[str, LayerFormat | None]
    dtype: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    preset: str = ""
    keep: Container[str] = frozenset()


class StoredTensors(Protocol):
    """The tensors of a checkpoint by the names of the float model; quantized ones are decoded when they are read."""

    path: Path

    @property
    def headers(self) -> Mapping[str, Mapping[str, Any]]:
        """Shape and dtype of each tensor, as the float model would have it."""
        ...

    def __iter__(self) -> Iterator[str]: ...

    def __contains__(self, name: object) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Of one tensor of the float model."""
        ...

    def read(self, name: str) -> Array:
        """The values of one tensor: as stored, or dequantized to float32."""
        ...

    def quantized(self, name: str) -> bool:
        """Whether a tensor is stored quantized."""
        ...

    def qtensor(self, name: str) -> QTensor | None:
        """The integers and scales of a quantized weight; `None` for others, and where they have no such form."""
        ...

    def activation(self, name: str) -> QuantizationGrid | None:
        """How the input of a layer is quantized at run time, by the name of its weight."""
        ...

    def config(self) -> dict[str, Any]:
        """The configuration of the float model."""
        ...


class CheckpointFormat(Protocol):
    """Writes and reads one format. A member inherits from it; the methods with a body are defaults."""

    name: str
    extra: str
    """The extra of fewbit that installs its library."""
    target: str
    """The runtime that reads it first of all."""
    float_head: str
    """Why the output layer stays in float; empty if the format holds it quantized."""

    def adapt(self, layer: LayerFormat) -> LayerFormat:
        """The same layer with scales, zero points and groups as this format stores them."""
        return layer

    def refusal(self, layer: LayerFormat, shape: tuple[int, ...] | None = None) -> str | None:
        """Why it cannot hold such a layer, a weight of this shape; `None` if it can."""
        ...

    def mismatch(self, tensor: QTensor) -> str | None:
        """Why it cannot hold these integers and scales as they are; `None` if it can."""
        return None

    def check(self, job: CheckpointJob) -> None:
        """Refuse a model that it cannot hold; configuration, tokenizer and layers are looked at, no weight is read.

        Raises:
            ModelError: what it cannot hold, all reasons at once.
        """
        return

    def stored(self, tensor: NamedTensor, job: CheckpointJob) -> NamedTensor | None:
        """The same tensor with the values that the files will have; `None` for buffers that runtimes compute."""
        return tensor

    def write(self, folder: Path, tensors: Iterable[NamedTensor], job: CheckpointJob) -> list[str]:
        """Write all files of a model; returns their names."""
        ...

    def read(self, folder: Path) -> Iterable[tuple[str, Array]]:
        """Every tensor of the source's names with its float values, decoded independently of `write`."""
        ...

    def open(self, path: Path) -> StoredTensors | None:
        """The tensors of a checkpoint in this format; `None` if a file or folder is in another."""
        ...
