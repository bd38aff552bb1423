# SPDX-License-Identifier: Apache-2.0
"""A dataset of boxes and polygons as a lazy source: an image and its label file are read when asked for."""

from __future__ import annotations

from fewbit.data.boxes import background, objects
from fewbit.data.boxes.fault import Fault
from fewbit.data.boxes.finder import Item
from fewbit.data.boxes.labels import read_labels
from fewbit.data.boxes.layout import Layout
from fewbit.data.boxes.rows import Rules
from fewbit.data.boxes.small_text import Unreadable, read_small
from fewbit.data.findings import Policy, Severity
from fewbit.data.images import decode, pool
from fewbit.data.sample import Place, Sample
from fewbit.data.source import Source
from fewbit.errors import UsageError, nearest

DETECTION, SEGMENTATION = "object-detection", "segmentation"
_TASKS = {
    "detection": DETECTION,
    DETECTION: DETECTION,
    SEGMENTATION: SEGMENTATION,
    "image-segmentation": SEGMENTATION,
    "instance-segmentation": SEGMENTATION,
}
_LOOK_AT = 64


def known_task(task: str | None) -> str | None:
    """A task by its usual name, or `None` when it is to be found out.

    >>> known_task("object_detection")
    'object-detection'
    """
    if task is None:
        return None
    name = task.lower().replace("_", "-")
    if name not in _TASKS:
        raise UsageError(f"a YOLO dataset cannot serve the task {task!r}", expected=nearest(name, _TASKS))
    return _TASKS[name]


def infer_task(items: list[Item], rules: Rules) -> str:
    """Segmentation when a polygon stands in one of a few label files, evenly chosen; else detection."""
    labelled = [item for item in items if item.labelled]
    for item in labelled[:: max(1, len(labelled) // _LOOK_AT)]:
        try:
            counts = {len(row.split()) for row in read_small(item.label.path).splitlines()}
        except Unreadable:
            continue
        if any(n >= 7 and n % 2 == 1 and not (n == 9 and rules.oriented) for n in counts):
            return SEGMENTATION
    return DETECTION


class BoxSource(Source):
    """The images of one split, or of all, with their objects.

    Args:
        layout: what lies where.
        split: the split to read; None reads all of them in the order train, val, test.
        task: detection or segmentation; None looks at a few label files.
        rules: what label rows are held against.
        policy: what happens to faults.
    """

    targets = frozenset({"boxes", "classes", "polygons", "masks"})

    def __init__(self, layout: Layout, split: str | None, task: str | None, rules: Rules, policy: Policy):
        super().__init__()
        self._rules = rules
        self._policy = policy
        self._noted: set[tuple[str, Place]] = set()
        faults = [*layout.faults, *background.missing_labels(layout)]
        left_out = {
            fault.place.path
            for fault in faults
            if split is None or fault.split in (None, split)
            if self._meet(fault) == "drop" and fault.code == "stem-twice"
        }
        items = [item for item in layout.items if split is None or item.split == split]
        # Two splits may be the same folder (`train: images`, `val: images`); all of it still means each image once.
        once: dict[str, Item] = {}
        for item in items:
            if item.image.name not in left_out:
                once.setdefault(item.image.path, item)
        self._items = self._decodable(list(once.values()))
        self.task = task or infer_task(self._items, rules)
        self.facts = {
            "classes": list(layout.names) or None,
            "nc": layout.nc,
            "task": self.task,
            "splits": layout.splits,
            "layout": layout.found.kind,
            "without_label_file": sum(not item.labelled for item in self._items),
        }

    def __len__(self) -> int:
        return len(self._items)

    def place(self, index: int) -> Place:
        """The image file."""
        return Place(self._items[index].image.name, index=index)

    def get(self, index: int) -> Sample:
        """The image and its objects."""
        item = self._items[index]
        try:
            image = decode.read_image(item.image.path)
        except decode.ImageFault as fault:
            raise self._policy.finding(fault.code, fault.message, self.place(index)).to_error() from None
        height, width = image.shape[:2]
        shapes = []
        if item.labelled:
            lost = len(self.record.lines)
            shapes = read_labels(item.label, self._rules, self._meet, lambda: (width, height)).shapes
            if not shapes and len(self.record.lines) > lost:
                reason = f"every row of {item.label.name} was dropped: the image now looks like background"
                self.record.note("objects-lost", reason, where=self.place(index))
        sample = Sample({"image": image, **objects.arrays(shapes)}, place=self.place(index))
        if self.task == SEGMENTATION:
            masks = objects.masks(shapes, height, width)
            if isinstance(masks, str):
                raise self._policy.finding("masks-too-large", masks, self.place(index)).to_error()
            sample["masks"] = masks
        return sample

    def _meet(self, fault: Fault) -> str:
        action = self._policy.meet(fault.code, fault.message, fault.place, fault.fix)
        told = self._policy.finding(fault.code, fault.message, fault.place)
        # Every epoch meets the same faults again; each is worth one line. Background images are counted instead.
        if fault.code != "label-missing" and (fault.code, fault.place) not in self._noted:
            if action != "keep" or told.severity is not Severity.INFO:
                self.record.note(fault.code, f"{action}: {fault.message}", where=fault.place)
            self._noted.add((fault.code, fault.place))
        return action

    def _decodable(self, items: list[Item]) -> list[Item]:
        """The items without those to be dropped for their image; all are decoded once, so that the length is right."""
        if not any(self._policy[code] == "drop" for code in decode.CODES):
            return items
        kept = []
        for item, fault in zip(items, pool.verify_in_order(item.image.path for item in items)):
            # A fault that is to be raised is raised when the sample is asked for.
            if fault is None or self._policy[fault.code] != "drop":
                kept.append(item)
            else:
                self._meet(Fault(fault.code, fault.message, Place(item.image.name)))
        return kept
