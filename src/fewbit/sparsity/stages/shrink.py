# SPDX-License-Identifier: Apache-2.0
"""Channels and attention heads taken out for good: a smaller dense model, faster on any machine.

What hangs together is found by running the model on one sample; what goes is what costs least on the calibration
samples, and weights that are left make up for it. See `fewbit.sparsity.shrinking`.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from fewbit.data.keys import is_count
from fewbit.errors import UsageError
from fewbit.sparsity.job import Job


@dataclass(frozen=True)
class Settings:
    """What is taken out.

    Args:
        channels: share of the channels of each group of layers that make them.
        heads: share of the heads of each attention; one key-value head takes its query heads along.
        targets: layers whose channels may go: names, globs, `re:` and an expression, or classes; all if empty.
        ignore: layers whose channels stay.
        multiple: how many channels stay is a multiple of this, such as 8, which kernels like.
        score: what decides: `error` (of what reads the channels, on calibration samples) or `magnitude` (of weights).
        compensate: whether weights that are left make up for what is gone, where that helps on samples kept aside.
        reloadable: whether a Hugging Face model must stay one that its library loads from a folder.

    >>> Settings(channels=0.25).heads
    0.0
    """

    channels: float = 0.0
    heads: float = 0.0
    targets: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    multiple: int = 1
    score: Literal["error", "magnitude"] = "error"
    compensate: bool = True
    reloadable: bool = True

    def __post_init__(self) -> None:
        faults = [
            f"{name}={value!r}" for name, value in (("channels", self.channels), ("heads", self.heads))
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1
        ]  # fmt: skip
        if not is_count(self.multiple):
            faults.append(f"multiple={self.multiple!r}")
        if self.score not in ("error", "magnitude"):
            faults.append(f"score={self.score!r}")
        if faults:
            raise UsageError(
                ", ".join(faults),
                where="shrink",
                expected="channels and heads from 0 to below 1, multiple from 1 up, score 'error' or 'magnitude'",
            )


def refuse(settings: Settings, model: Any, job: Job) -> None:
    """Codes in the place of weights, names of layers that are not there; of a module, no sample to run it on.

    Raises:
        UsageError: one of these.
    """
    if not (settings.channels or settings.heads):
        return
    from fewbit.engine.run import view_of
    from fewbit.sparsity.shrinking.naming import refuse_names

    if not isinstance(model, nn.Module):
        from fewbit.sparsity.shrinking.graph import refuse_graph

        view: Any = view_of(model)
        refuse_graph(view, settings)
        return

    if job.calibration is None:
        raise UsageError(
            "no data to shrink with",
            where="shrink",
            expected="at least one sample: running the model on it shows which channels hang together",
            try_="sparsify(model, data, …) with a folder, a loader or a list of inputs",
        )
    codes = view_of(model).quantized()
    if codes:
        raise UsageError(
            f"{len(codes)} layers are quantized already",
            where=", ".join(codes[:4]),
            expected="a float model",
            try_="shrink first, then quantize",
        )
    refuse_names(model, settings.targets, settings.ignore)


def run(model: Any, settings: Settings, job: Job) -> Any:
    """The smaller model; a line of the record for each group, bytes `before` and `after` in its facts."""
    if not settings.channels and not settings.heads:
        job.record.note("shrink", "no channels and no heads are to be taken out")
        return deepcopy(model)
    if isinstance(model, nn.Module):
        from fewbit.sparsity.shrinking.module import shrink_module

        return shrink_module(model, settings, job)
    from fewbit.sparsity.shrinking.graph import shrink_graph

    return shrink_graph(model, settings, job)
