# SPDX-License-Identifier: Apache-2.0
"""Say where the objects in a picture are, and of which class.

Models of transformers that answer with a fixed number of boxes (DETR, RT-DETR, YOLOS …) are given the answers and
compute their own loss. Answers are `labels`, of each picture a dict with `class_labels` and `boxes` (centre x, centre
y, width, height, as shares of the picture); or `classes` and `boxes`, as our collator gives them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fewbit.tuning.calling import takes
from fewbit.tuning.measures.average_precision import THRESHOLDS, average_precision, match
from fewbit.tuning.tasks import _base
from fewbit.tuning.tasks._base import Batch

MODEL = "AutoModelForObjectDetection"
ANSWERS = ()
MOST = 100
"""So many boxes of a picture are judged, the likeliest."""

_OBJECTS = ("boxes", "classes", "masks", "polygons", "object_mask")


def prepare(batch: Batch, model: nn.Module) -> dict[str, Any]:
    """The batch with `labels` as models take them, and `class_count`, by which logits are told apart."""
    made = {name: value for name, value in batch.items() if name not in _OBJECTS}
    if "labels" not in batch and {"boxes", "classes"} <= batch.keys():
        rows = zip(batch["classes"], batch["boxes"], batch.get("object_mask", [slice(None)] * len(batch["boxes"])))
        made["labels"] = [{"class_labels": classes[there], "boxes": boxes[there]} for classes, boxes, there in rows]
    return made | {"class_count": _base.classes_of(model)}


def loss(outputs: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """The model's own loss, which is a mean over objects: times their number, and that number.

    Parts of a batch add up to it exactly where all of the loss is such a mean. What DETR itself and YOLOS say about
    classes is a mean over boxes instead, weighed by objects here.
    """
    objects = sum(len(each["class_labels"]) for each in batch["labels"])
    total: Tensor = outputs.loss
    return total * max(1, objects), torch.tensor(float(objects), device=total.device)


class METRIC(_base.Metric):
    """Mean average precision over classes, and the share of objects that one of the boxes finds.

    Each of boxes that overlap by half (`map_50`, `recall_50`), and the mean over .5, .55 … .95 (`map`, `recall`).
    """

    BEST = ("map", "max")

    def __init__(self) -> None:
        super().__init__()
        self._seen: list[tuple[Tensor, Tensor, Tensor, list[Mapping[str, Tensor]]]] = []
        self._parts: list[dict[str, Any]] | None = None

    def update(self, outputs: Any, batch: Batch) -> None:
        """Keep the likeliest boxes; they are compared when all have been seen, so that nothing waits here."""
        logits = outputs.logits.detach().float()
        has_none = batch["class_count"] is not None and logits.shape[-1] == batch["class_count"] + 1
        likely = logits.softmax(-1)[..., :-1] if has_none else logits.sigmoid()  # [N, boxes, classes]
        scores, place = likely.flatten(1).topk(min(MOST, likely[0].numel()))
        query, kind = place // likely.shape[-1], place % likely.shape[-1]
        boxes = outputs.pred_boxes.detach().float().gather(1, query[..., None].expand(-1, -1, 4))
        self._seen.append((scores, kind, boxes, batch["labels"]))

    def parts(self) -> dict[str, Any]:
        """Of all boxes the score, the class, and at which overlaps they are right; of all objects the class."""
        scores, kinds, right, truths = [np.zeros(0)], [np.zeros(0, int)], [np.zeros((0, len(THRESHOLDS)), bool)], []
        for seen, kind, boxes, labels in self._seen:
            for row, truth in enumerate(labels):
                own = [each.cpu().numpy() for each in (boxes[row], kind[row])]
                true = [truth[name].cpu().numpy() for name in ("boxes", "class_labels")]
                scores.append(seen[row].cpu().numpy())
                kinds.append(own[1])
                right.append(match(*own, *true))
                truths.append(true[1])
        joined = {name: np.concatenate(each) for name, each in (("scores", scores), ("kinds", kinds), ("right", right))}
        return joined | {"truths": np.concatenate(truths) if truths else np.zeros(0, int)}

    def merge(self, parts: Iterable[Any]) -> None:
        self._parts = list(parts)

    def result(self) -> dict[str, float]:
        parts = self._parts or [self.parts()]
        found = self.drawn(parts, np.ones((1, len(parts)), int))
        return {name: float(values[0]) for name, values in found.items()}

    @classmethod
    def drawn(cls, parts: Sequence[Any], times: NDArray[Any]) -> dict[str, NDArray[Any]]:
        names = ("scores", "kinds", "right", "truths")
        scores, kinds, right, truths = (np.concatenate([each[name] for each in parts]) for name in names)
        picture, of_truth = (
            np.repeat(np.arange(len(parts)), [len(each[name]) for each in parts]) for name in ("scores", "truths")
        )
        areas, shares, there = (np.zeros((len(times), size)) for size in (len(THRESHOLDS), len(THRESHOLDS), 1))
        for kind in np.unique(truths):
            objects = times @ np.bincount(of_truth[truths == kind], minlength=len(parts))
            own = np.flatnonzero(kinds == kind)
            drawn = times[:, picture[own]]
            areas += average_precision(scores[own], right[own], objects, drawn)
            shares += drawn.astype(float) @ right[own] / objects.clip(1)[:, None]
            there += (objects > 0)[:, None]
        # A mean over the classes there are; where nothing is there to be found, no number.
        known = np.where(there > 0, there, np.nan)
        area, share = areas / known, shares / known
        return {"map": area.mean(1), "map_50": area[:, 0], "recall": share.mean(1), "recall_50": share[:, 0]}


def faults(batch: Batch, model: nn.Module) -> list[str]:
    """No objects, boxes that are no shares of the picture, classes that the model has not, a model without a loss."""
    if "labels" not in takes(model):
        return [f"a {type(model).__name__} takes no labels; expected one of transformers' that computes its own loss"]
    labels = batch.get("labels")
    if not isinstance(labels, list) or not all(
        isinstance(each, Mapping) and {"class_labels", "boxes"} <= each.keys() for each in labels
    ):
        return ["there are no objects; expected boxes and classes, or labels as dicts of class_labels and boxes"]
    found = []
    boxes = torch.cat([each["boxes"].reshape(-1, 4) for each in labels])
    classes = torch.cat([each["class_labels"].flatten() for each in labels])
    if len(boxes) != len(classes):
        found.append(f"there are {len(boxes)} boxes and {len(classes)} classes")
    if len(boxes) and not bool(((boxes >= -1e-3) & (boxes <= 1 + 1e-3)).all()):
        low, high = float(boxes.min()), float(boxes.max())
        found.append(f"boxes go from {low:.4g} to {high:.4g}; expected shares of the picture, 0 to 1")
    if len(boxes) and bool((boxes[:, 2:] <= 0).any()):
        found.append("a box has no width or no height; expected centre x, centre y, width, height")
    return [*found, *(_base.class_faults(classes, _base.classes_of(model), "classes") if len(classes) else [])]
