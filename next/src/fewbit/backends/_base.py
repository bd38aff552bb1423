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
    """

    name: str
    type: str
    weight: str
    shape: tuple[int, ...]
    channel_axis: int


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
