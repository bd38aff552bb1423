# SPDX-License-Identifier: Apache-2.0
"""The numbers of every task that says one class of a sample."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fewbit.tuning.measures.class_rates import class_rates
from fewbit.tuning.tasks._base import NOTHING, Batch, Metric, logits_of

_KEPT = ("labels", "said")


class Classes(Metric):
    """Precision, recall and F1, means over classes; a subclass adds how often the class is right."""

    BEST = ("accuracy", "max")

    def __init__(self) -> None:
        super().__init__()
        self._seen: list[tuple[Tensor, Tensor]] = []
        self._parts: list[dict[str, Any]] | None = None

    def update(self, outputs: Any, batch: Batch) -> None:
        logits = logits_of(outputs).detach()
        said = logits.argmax(-1).masked_fill(logits.isnan().any(-1), -1)
        self._seen.append((batch["labels"].flatten(), said.flatten()))

    def parts(self) -> dict[str, Any]:
        kept = [np.concatenate([each[n].cpu().numpy() for each in self._seen] or [np.zeros(0, int)]) for n in (0, 1)]
        known = kept[0] != NOTHING
        return {**super().parts(), **{name: each[known] for name, each in zip(_KEPT, kept)}}

    def merge(self, parts: Iterable[Any]) -> None:
        self._parts = list(parts)
        super().merge({name: each[name] for name in each if name not in _KEPT} for each in self._parts)

    def result(self) -> dict[str, float]:
        parts = [self.parts()] if self._parts is None else self._parts
        return {name: float(values[0]) for name, values in self.drawn(parts, np.ones((1, len(parts)))).items()}

    @classmethod
    def drawn(cls, parts: Sequence[Any], times: NDArray[Any]) -> dict[str, NDArray[Any]]:
        labels, said = (np.concatenate([each[name] for each in parts]) for name in _KEPT)
        sample = np.repeat(np.arange(len(parts)), [len(each["labels"]) for each in parts])
        return class_rates(labels, said, times[:, sample])
