# SPDX-License-Identifier: Apache-2.0
"""The problem of a `"correct"` algorithm: how far the mean of a layer's output moved, channel by channel."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from fewbit.errors import DataError, UsageError


@dataclass(frozen=True)
class Taps:
    """What a layer's input is on average, at every place of the kernel; see `fewbit.model.watch`.

    Args:
        sums: `[features, kernel…]`, what every kernel element was multiplied with, summed over output positions, zero
            where it met padding.
        windows: how many output positions that were.
    """

    sums: Tensor
    windows: int | Tensor

    @property
    def mean(self) -> Tensor:
        """The mean in float64; zero where there was nothing."""
        return self.sums.double() / max(int(self.windows), 1)

    def mean_output(self, weight: Tensor, groups: int = 1) -> Tensor:
        """The mean output `[out]` of a layer without bias and with this weight `[out, in, kernel…]`, in float64.

        Exact for every padding, stride and dilation, and for transposed convolutions: the output is linear in the
        weight, and what each element is multiplied with was summed as it happened.
        """
        rows = weight.detach().double().reshape(groups, len(weight) // groups, -1)
        return (rows @ self.mean.to(weight.device).reshape(groups, -1, 1)).flatten()


@dataclass(frozen=True)
class OutputMeans:
    """Means of a layer's output by channel.

    Args:
        wanted: of the float model, `[out]`.
        found: of the quantized one, on quantized inputs, `[out]`.
    """

    wanted: Tensor
    found: Tensor

    @property
    def off(self) -> Tensor:
        """What is missing from the quantized one, in float64."""
        return self.wanted.detach().double() - self.found.detach().double()


@dataclass(frozen=True)
class BiasProblem:
    """One layer whose bias is to make up for what quantization did to the mean of its output.

    Args:
        weight: as it was, `[out, in, kernel…]`.
        rounded: the values its codes stand for.
        groups: `out` block i contracts with block i of the input features.
        taps: what its input was in calibration; or none.
        held_out_taps: the same from items kept aside.
        outputs: what its output was in calibration, float and quantized; or none.
        held_out_outputs: the same from items kept aside.
        mean_square: E[y²] of its float output by channel, `[out]`, to say how large an error is; or none.
        name: what messages call the layer.
    """

    weight: Tensor
    rounded: Tensor
    groups: int = 1
    taps: Taps | None = None
    held_out_taps: Taps | None = None
    outputs: OutputMeans | None = None
    held_out_outputs: OutputMeans | None = None
    mean_square: Tensor | None = None
    name: str = ""

    def check(self) -> None:
        """Refuse what does not fit together.

        Raises:
            DataError: a value is not finite.
            UsageError: shapes that do not fit.
        """
        out, shape = len(self.weight), tuple(self.weight.shape)
        features = shape[1] * self.groups
        wanted = {"rounded": (self.rounded, prod(shape)), "mean_square": (self.mean_square, out)}
        for name, taps in (("taps", self.taps), ("held_out_taps", self.held_out_taps)):
            wanted[name] = (None if taps is None else taps.sums, features * prod(shape[2:]))
        for name, means in (("outputs", self.outputs), ("held_out_outputs", self.held_out_outputs)):
            wanted[f"{name}.wanted"] = (None if means is None else means.wanted, out)
            wanted[f"{name}.found"] = (None if means is None else means.found, out)
        for name, (values, count) in wanted.items():
            if values is not None and values.numel() != count:
                raise UsageError(
                    f"{name} of shape {list(values.shape)} for a weight of shape {list(shape)}, groups {self.groups}",
                    where=self.name or None,
                    expected=f"{count} elements",
                )
            if values is not None and not bool(torch.isfinite(values.sum(dtype=torch.float64))):
                raise DataError(
                    f"{name} holds numbers that are not finite",
                    where=self.name or None,
                    expected="numbers that are neither NaN nor infinite",
                    try_="run the float model on the calibration items, and leave out those it fails on",
                )


@dataclass(frozen=True)
class Shift:
    """What has to be added to the output, and what is worth recording.

    Args:
        amount: float32 `[out]`, zero for channels left alone; none if all are.
        facts: plain data.
    """

    amount: Tensor | None = None
    facts: dict[str, Any] = field(default_factory=dict)
