# SPDX-License-Identifier: Apache-2.0
"""What a recipe says of the stage `train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fewbit.errors import UsageError, nearest
from fewbit.numerics.sparsity import Pattern
from fewbit.schemes.presets import PRESETS
from fewbit.sparsity.schedules import Schedule
from fewbit.tuning.faults import Faults
from fewbit.tuning.options import Options

_OWN_TOO = ("epochs", "max_steps", "lr", "batch_size")
_OWN = {
    "preset": "quantize",
    "targets": "nothing: no adapters are trained here",
    "hold_zeros": "nothing: zeros hold here, whatever is trained",
}
"""Options of `finetune` that are said elsewhere."""


@dataclass(frozen=True)
class TrainSettings:
    """How the model is trained.

    Args:
        final: the share of zeros at the end; if not said, that of N:M, or those that are there stay and no others come.
        initial: the share of zeros at the first change of the masks.
        structure: `unstructured`, `N:M` (keeps N of M), or a block such as `1x4`.
        scope: `layer`, every layer has this share; `global`, all together have it.
        schedule: how it grows: `cubic`, `linear`, `exponential`, `constant`.
        start: the share of the run after which masks change for the first time.
        end: the share of the run after which they change for the last time.
        updates: how many times they change.
        regrow: the share of the weights that are left which are chosen by their gradients and not by their size, at
            each change but the last, so that pruned ones may come back; not for N:M.
        targets: layers by name, glob, `re:` or class; the usual ones if empty, see `fewbit.sparsity.layers`.
        ignore: layers that stay dense.
        epochs: passes over the data, codes included; if neither these nor steps are said, 10 for convolutions, else 3.
        max_steps: steps, instead of epochs.
        lr: the highest learning rate; if not said, 1e-3 for convolutions, else 5e-5.
        batch_size: samples that a process runs at a time.
        distill: learn from the dense model, or from the teacher of the call.
        quantize: a preset's name, such as `w8a8`: what the model is at the end, learned with rounding in place.
        quantize_share: how much of the run that is; all of it where there are no zeros to be learned before.
        quantize_lr: its learning rate; a tenth of the other if not said.
        new_head: give the model a new head for the classes of the data; to it the dense model's own teaches nothing, so
            with `distill` it learns from the teacher of the call alone, if there is one.
        options: further options of `fewbit.finetune`, by name.

    >>> TrainSettings(final=0.8, quantize="w8a8").plan.final
    0.8
    """

    final: float | None = None
    initial: float = 0.0
    structure: str = "unstructured"
    scope: str = "layer"
    schedule: str = "cubic"
    start: float = 0.0
    end: float = 0.7
    updates: int = 20
    regrow: float = 0.0
    targets: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    epochs: float | None = None
    max_steps: int | None = None
    lr: float | None = None
    batch_size: int | None = None
    distill: bool = True
    quantize: str | None = None
    quantize_share: float = 0.25
    quantize_lr: float | None = None
    new_head: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        faults = Faults()
        pattern = faults.tried(lambda: self.pattern)
        faults.tried(lambda: self._schedule(self.final or 0.0 if pattern is None else pattern.share))
        faults.tried(self._refuse_words)
        faults.tried(lambda: Options.read({**self.options, **self.said}))
        faults.tell()

    @property
    def pattern(self) -> Pattern | None:
        """What is zero at the end; none if the zeros stay that are there."""
        if self.structure == "unstructured" and self.final is None:
            return None
        return Pattern.read(self.structure, self.final)

    @property
    def plan(self) -> Schedule:
        """When zeros come."""
        return self._schedule(0.0 if self.pattern is None else self.pattern.share)

    def _schedule(self, final: float) -> Schedule:
        return Schedule(final, self.initial if final else 0.0, self.schedule, self.start, self.end, self.updates)

    @property
    def said(self) -> dict[str, Any]:
        """The options of `finetune` that are settings of their own here, as far as they are said."""
        values = {name: getattr(self, name) for name in _OWN_TOO}
        return {name: value for name, value in values.items() if value is not None}

    def _refuse_words(self) -> None:
        faults = []
        if self.scope not in ("layer", "global"):
            faults.append(f"scope {self.scope!r}: expected layer or global")
        if self.scope == "global" and self.structure != "unstructured":
            faults.append(f"scope global with {self.structure}: expected structure unstructured")
        if not 0 <= self.regrow < 1 or (self.regrow and ":" in self.structure):
            faults.append(f"regrow={self.regrow!r} with {self.structure}: expected 0 to 1, and 0 for N:M")
        if self.quantize is not None and self.quantize not in PRESETS:
            faults.append(f"quantize {self.quantize!r}: {nearest(str(self.quantize), PRESETS)}")
        if not 0 < self.quantize_share < 1:
            faults.append(f"quantize_share={self.quantize_share!r}: expected a number between 0 and 1")
        faults += [f"options.{name}: it is said by {other}" for name, other in _OWN.items() if name in self.options]
        twice = [name for name in _OWN_TOO if name in self.options]
        faults += [f"options.{name}: it is a setting of the stage itself" for name in twice]
        if faults:
            raise UsageError("; ".join(faults), where="train", expected="settings of the stage train")
