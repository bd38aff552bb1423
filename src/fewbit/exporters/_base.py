# SPDX-License-Identifier: Apache-2.0
"""What an exporter is: one way to write a model, for one family of readers.

A member is a file with

- `write(model, folder, **options) -> dict`: write every file into `folder`, which is empty and of no other use, and
  return what `fewbit.json` shall say besides; JSON values. Options are keyword arguments with defaults;
- `check(model, folder, manifest)`: read the files back with other code than wrote them and compare them with the model;
  raise `DataError` at the first bit that differs;
- `refusals(weights) -> list of (layer, reason)`: everything that speaks against writing such weights, found before any
  computation; `weights` are `Destined`, the quantized ones and those that stay in float. A format that takes everything
  has none;
- `model_refusals(model, weights) -> list of (layer, reason)`: the same of what only the model tells, still in float;
  raise `UsageError` where the format has no place for such a model at all;
- `lay_out(model, folder, contents, **options) -> Laid`: for formats that a checkpoint is turned into file to file:
  write what is no tensor, and say which tensors there are. Where `contents` is given the model has stand-ins, and
  `contents` the values (`_checkpoint_layout`); `check(model, folder, manifest, contents)` then compares a sample;
- `read(folder, manifest, *, model, factory, device, verify) -> model`: for formats that fewbit loads itself; a format
  that only another runtime loads has none. What the four mean stands at `fewbit.load`, which gives them all.

`engine.delivering` does the rest, the same for all: nothing is written where a user has files, and a folder is there
whole and checked or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fewbit.exporters._checkpoint_layout import Contents, Laid
from fewbit.numerics.grid import Grid


@dataclass(frozen=True)
class Destined:
    """A weight, and what a plan makes of it and of its layer's input.

    Args:
        layer: its layer's name in the model.
        tensor: its name within the layer.
        shape: `[stack…, out, in, kernel…]`.
        grid: what it becomes; none if it stays in float.
        input: what the layer's input becomes; none if it stays in float.
        dynamic: whether the input's scales are found in each call.
        embedding: whether it is a table that rows are looked up in.
    """

    layer: str
    tensor: str
    shape: tuple[int, ...]
    grid: Grid | None
    input: Grid | None = None
    dynamic: bool = False
    embedding: bool = False


class Exporter(Protocol):
    """What an exporter module offers."""

    def write(self, model: Any, folder: Path, **options: Any) -> dict[str, Any]:
        """Write the model's files into an empty folder; returns what the manifest shall say of them."""

    def check(self, model: Any, folder: Path, manifest: Mapping[str, Any]) -> None:
        """Read back what was written and compare it with the model."""


class Streamable(Exporter, Protocol):
    """What an exporter module offers whose format a checkpoint is turned into file to file."""

    def lay_out(self, model: Any, folder: Path, contents: Contents | None = None, **options: Any) -> Laid:
        """Write what is no tensor, and say which tensors there are."""

    def check(self, model: Any, folder: Path, manifest: Mapping[str, Any], contents: Contents | None = None) -> None:
        """Read back what was written and compare it with the model, or a sample of it with the contents."""


class Loadable(Exporter, Protocol):
    """What an exporter module offers whose format fewbit loads itself."""

    def read(
        self,
        folder: Path,
        manifest: Mapping[str, Any],
        *,
        model: Any,
        factory: Callable[[], Any] | str | None,
        device: Any,
        verify: bool,
    ) -> Any:
        """The model that was written, ready to run."""
