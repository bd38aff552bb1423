# SPDX-License-Identifier: Apache-2.0
"""The protocol of a backend: it reads a model into the neutral graph, runs it, applies edits, saves; decides nothing.

One file or folder here per backend defines `BACKEND`. It is importable without its framework.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fewbit.model_info import ModelInfo

Inputs = Mapping[str, np.ndarray]
"""One batch, by input name."""


@dataclass(frozen=True)
class Layer:
    """A layer that can be quantized.

    Args:
        name: of the node or module.
        type: the operator: `Conv`, `MatMul`.
        weight: name of its weight.
        shape: of the weight.
        channel_axis: the output channels of the weight.
        role: `head` for the output layer of a language model, else empty.
    """

    name: str
    type: str
    weight: str
    shape: tuple[int, ...]
    channel_axis: int
    role: str = ""


@dataclass(frozen=True)
class ModuleLayer(Layer):
    """A weight of a PyTorch module, and what can be done to it.

    The name is the path of the module, with the parameter's name if the module has several weights; layers whose
    weights are tied have the same `weight`.

    Args:
        op: `matmul`, `conv`, `conv_transpose` or `gather` (an embedding).
        module: the path of the module.
        parameter: the name of the weight there.
        groups: of a convolution.
        types: the names of its class and of those it inherits from.
        bias: the name of the bias, or `None`.
        observable: whether its own forward runs, so that its input can be observed.
        geometry: of a convolution: strides, padding (before, after) per axis, dilations, padding mode.
        reason: why its weight cannot be quantized; empty if it can.
    """

    op: str = "matmul"
    module: str = ""
    parameter: str = "weight"
    groups: int = 1
    types: tuple[str, ...] = ()
    bias: str | None = None
    observable: bool = True
    geometry: tuple[Any, ...] = ()
    reason: str = ""

    @property
    def features(self) -> int:
        """The axis of its input that counts features, from the end: a batch axis may be missing."""
        return 1 - len(self.shape) if self.op.startswith("conv") else -1

    @property
    def in_channels(self) -> int:
        """Inputs that one output reads, without the axes of a kernel."""
        inputs = self.shape[1 - self.channel_axis]
        return inputs // self.groups if self.op == "conv_transpose" else inputs


@dataclass(frozen=True)
class Graph:
    """What the analysis sees of a model; issue 3 and 4 give it nodes and values."""

    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Edit:
    """A change of a model, as plain data."""


@dataclass(frozen=True)
class EncodeWeight(Edit):
    """Store a weight as integers with scales.

    Args:
        weight: its name.
        integers: int8, of the weight's shape.
        scales: per channel, or one.
        axis: the channel axis; `None` for one scale.
    """

    weight: str
    integers: np.ndarray = field(repr=False)
    scales: np.ndarray = field(repr=False)
    axis: int | None


@dataclass(frozen=True)
class Reduction:
    """What to observe of a value while the model runs: min, max, sum of squares, or the value itself."""

    value: str
    kind: str


@dataclass(frozen=True)
class RunResult:
    """One batch through a session: outputs by name, and what was observed."""

    outputs: Mapping[str, np.ndarray]
    observed: Mapping[Reduction, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Kernel:
    """What a runtime executes for one or more layers of the model."""

    name: str
    layers: tuple[str, ...]
    kind: str


class Session(Protocol):
    """A model that is ready to run."""

    def run(self, inputs: Inputs) -> RunResult:
        """One batch."""
        ...

    def kernels(self) -> tuple[Kernel, ...] | None:
        """What the runtime really executes; `None` if it does not say."""
        ...

    def close(self) -> None:
        """Free its memory."""
        ...


class Model(Protocol):
    """A loaded model; the source it came from is never changed."""

    def graph(self) -> Graph:
        """Its layers."""
        ...

    def fork(self) -> Model:
        """A copy; constants are shared until an edit replaces them."""
        ...

    def apply(self, edits: Iterable[Edit]) -> None:
        """Change it; unknown names or kinds of edits are errors."""
        ...

    def weight(self, name: str) -> np.ndarray:
        """A constant by name."""
        ...

    def session(self, *, observe: Sequence[Reduction] = (), threads: int | None = None) -> Session:
        """Make it ready to run."""
        ...

    def save(self, path: Path) -> Path:
        """Write it in its own format."""
        ...

    def for_user(self) -> Any:
        """The kind of object that came in."""
        ...


class Backend(Protocol):
    """One framework or file format; stateless."""

    name: str
    suffixes: tuple[str, ...]
    extra: str
    """The extra of fewbit that installs its library."""
    target: str
    """The runtime its models run on unless the user names one."""
    edits: frozenset[type[Edit]]

    def matches(self, source: Any) -> bool:
        """Whether it can read a path or an object; imports nothing."""
        ...

    def inspect(self, source: Any) -> ModelInfo:
        """Headers only."""
        ...

    def load(self, source: Any) -> Model:
        """Read the model."""
        ...


class BlockBackend(Protocol):
    """A backend whose language models run block by block."""

    def is_language_model(self, source: Any) -> bool:
        """Whether a source is one."""
        ...

    def weight_files(self, source: Path) -> Any:
        """Names and tensors of the weight files: iterable, with `read(name)`."""
        ...

    def linear_layers(self, source: Path) -> tuple[Layer, ...]:
        """The linear layers of blocks and head, in the order of the model; weights are not read."""
        ...

    def block_stream(
        self,
        source: Any,
        batches: Sequence[Inputs],
        held_out: Sequence[Inputs],
        *,
        device: str,
        formats: Mapping[str, Any],
    ) -> Any:
        """The model with batches before its first block: `open(index)`, `outputs()`, `close()`, and its length."""
        ...
