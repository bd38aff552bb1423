# SPDX-License-Identifier: Apache-2.0
"""What a repaired copy did about a fault, in a line for the user."""

from __future__ import annotations

from fewbit.data.boxes.fault import Fault

DONE = {
    "class-by-name": "the class's number is written",
    "folder-too-large": "its other files are left out",
    "image-missing": "left out of the split",
    "image-not-read": "left out",
    "image-twice": "copied once",
    "image-unassigned": "left out",
    "label-orphan": "left out",
    "label-utf16": "written as UTF-8",
    "link-broken": "left out",
    "link-cycle": "left out",
    "list-invalid": "left out of the split",
    "names-conflict": "the other names are kept",
    "names-invalid": "classes without a name are called class_N in the new data.yaml",
    "not-a-file": "left out",
    "out-of-range": "cut at the border",
    "out-of-range-slightly": "cut at the border",
    "path-guessed": "its images are copied, and the new data.yaml leads to them",
    "path-outside": "copied into the dataset",
    "pixel-coordinates": "divided by the image's size",
    "polygon-repeats": "the repeats are left out",
    "root-above": "the images and their labels are copied, nothing else of the dataset",
    "row-commas": "separated by spaces",
    "row-confidence": "the box is kept, the sixth value is left out",
    "split-missing": "left out of the new data.yaml",
    "split-too-wide": "left out of the new data.yaml",
    "unreadable": "left out",
    "yaml-ambiguous": "a new data.yaml is written",
    "yaml-download": "left out of the new data.yaml",
    "yaml-invalid": "a new data.yaml is written",
    "yaml-nc": "the new data.yaml has no `nc`",
    "yaml-tag": "the new data.yaml has none",
}
"""By code; a fault of a label row that is not here costs the row."""


def change(fault: Fault) -> str:
    """One line: where, what was found, what was done about it."""
    return f"{fault.place}: {fault.message}: {DONE.get(fault.code, 'row left out')} [{fault.code}]"
