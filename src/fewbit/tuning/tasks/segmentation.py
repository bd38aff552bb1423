# SPDX-License-Identifier: Apache-2.0
"""Say of each pixel of a picture of which class it is.

Answers are `labels` or `masks`, a class a pixel `[N, H, W]`, with 255 where nothing is known; or the `masks` and
`classes` of each picture's objects, as polygons give them. Of those background is class 0 and an object's class is one
more than the data's: a model for `n` classes of objects has `n + 1`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fewbit.tuning.measures.confusion import confusion, overlaps
from fewbit.tuning.tasks import _base
from fewbit.tuning.tasks._base import NOTHING, Batch, logits_of

MODEL = "AutoModelForSemanticSegmentation"
AXIS = 1
UNKNOWN = 255
"""What pixels are called of which nobody says what they are, usually their outlines."""

_OBJECTS = ("masks", "classes", "boxes", "polygons", "object_mask")


def prepare(batch: Batch, model: nn.Module) -> dict[str, Any]:
    """The batch with a class a pixel, as `labels`."""
    made = {name: value for name, value in batch.items() if name not in _OBJECTS}
    labels = batch.get("labels")
    if labels is None and "masks" in batch:
        labels = batch["masks"] if _is_flat(batch["masks"]) else _painted(batch)
    if isinstance(labels, Tensor) and not labels.is_floating_point():
        classes = _base.classes_of(model)
        labels = labels.long()
        if classes is None or classes <= UNKNOWN:  # else it is a class like the others
            labels = labels.masked_fill(labels == UNKNOWN, NOTHING)
    return made if labels is None else made | {"labels": labels}


def loss(outputs: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """The cross entropy of each pixel's class."""
    labels = batch["labels"]
    logits = _full_size(outputs, labels).float()
    with _base.told_beyond(labels, logits.shape[AXIS]):
        total = functional.cross_entropy(logits, labels, ignore_index=NOTHING, reduction="sum")
    return total, (labels != NOTHING).sum()


class METRIC(_base.Metric):
    """How much of its region each class covers, and how many pixels are right."""

    BEST = ("mean_iou", "max")

    def update(self, outputs: Any, batch: Batch) -> None:
        logits = _full_size(outputs, batch["labels"])
        self.add(table=confusion(batch["labels"], logits.argmax(1), logits.shape[1]))

    def result(self) -> dict[str, float]:
        table = self.sums["table"]
        share = overlaps(table)
        return {
            "mean_iou": float(share.nanmean()),  # of the classes that are anywhere
            "pixel_accuracy": float(table.trace() / table.sum().clamp(min=1)),
        }

    def parts(self) -> Any:
        return {name: value.cpu() for name, value in self.sums.items()}

    def merge(self, parts: Iterable[Any]) -> None:
        self.sums = {}
        for each in parts:
            self.add(**each)


def faults(batch: Batch, model: nn.Module) -> list[str]:
    """No classes of pixels, of another shape than a picture, or none that the model has."""
    labels = batch.get("labels")
    if not isinstance(labels, Tensor) or labels.ndim != 3:
        found = "no labels" if labels is None else f"labels {list(getattr(labels, 'shape', [type(labels).__name__]))}"
        return [f"there are {found}; expected a class a pixel, [pictures, height, width], or masks and classes"]
    return _base.class_faults(labels, _base.classes_of(model))


def _full_size(outputs: Any, labels: Tensor) -> Tensor:
    """Logits for every pixel; many models answer for every fourth."""
    logits = logits_of(outputs)
    if logits.shape[-2:] == labels.shape[-2:]:
        return logits
    return functional.interpolate(logits, size=labels.shape[-2:], mode="bilinear", align_corners=False)


def _is_flat(masks: Any) -> bool:
    """Whether masks are a class a pixel, and not one mask an object."""
    return isinstance(masks, Tensor) and masks.ndim == 3


def _painted(batch: Batch) -> Tensor:
    """Objects on a ground of zeros; small ones lie on large ones, or nobody would see them."""
    made = []
    for number, (masks, classes) in enumerate(zip(batch["masks"], batch["classes"])):
        ground = torch.zeros(masks.shape[-2:], dtype=torch.int64, device=masks.device)
        there = [n for n in range(len(classes)) if "object_mask" not in batch or batch["object_mask"][number][n]]
        for n in sorted(there, key=lambda n: -int(masks[n].sum())):
            ground = torch.where(masks[n].bool(), classes[n].long() + 1, ground)
        made.append(ground)
    labels = torch.stack(made)
    shown = batch.get("pixel_mask")  # what was added to fill the canvas is no background
    return labels if shown is None else labels.masked_fill(shown == 0, NOTHING)
