# SPDX-License-Identifier: Apache-2.0
"""YOLO detection and segmentation: images, and label files with one box or polygon a row; with or without data.yaml.

A sample has

    image      (H, W, 3) uint8, RGB, upright
    boxes      (n, 4) float32: centre x, centre y, width, height, as shares of the image
    classes    (n,) int64
    polygons   n entries: (k, 2) float32 x and y as shares of the image, or None where the row is a box
    masks      (n, H, W) bool, only for segmentation: polygons by the even-odd rule, boxes as rectangles

The source is the dataset's folder or its data.yaml. Nothing is ever written into the folder, nothing in it is
run, no cache in it is read. The machinery is in `fewbit.data.boxes`.
"""

from __future__ import annotations

from pathlib import Path

from fewbit.data.boxes import background, labels, layout, objects, pictures, survey
from fewbit.data.boxes.layout import Layout, lay_out
from fewbit.data.boxes.pixels import READINGS
from fewbit.data.boxes.reading import BoxSource, known_task
from fewbit.data.boxes.recognise import recognise
from fewbit.data.boxes.repair import repair
from fewbit.data.boxes.rows import Rules
from fewbit.data.findings import DataReport, Policy
from fewbit.data.formats._base import Match
from fewbit.data.signature import Signature
from fewbit.data.split_names import split_word
from fewbit.errors import UsageError, nearest

CODES = {
    **layout.CODES,
    **background.CODES,
    **labels.CODES,
    **objects.CODES,
    **pictures.CODES,
    **survey.CODES,
}


def detect(source: object) -> Match | None:
    """A folder with images and labels in it, or a data.yaml that names splits."""
    found = recognise(source) if isinstance(source, Path) else None
    return None if found is None else Match(*found)


def read(
    source: Path,
    *,
    split: str | None = None,
    task: str | None = None,
    policy: Policy,
    oriented: bool | None = None,
    one_based: bool = False,
    pixels: str = "centre",
    duplicate_digits: int | None = None,
) -> BoxSource:
    """Open a dataset lazily.

    Args:
        source: the folder, or its data.yaml.
        split: `train`, `val` or `test`; None reads all of them, in that order, each image once.
        task: `object-detection` or `segmentation`; None: segmentation when there are polygons.
        policy: what happens to faults.
        oriented: rows of nine values are oriented boxes (True) or polygons (False).
        one_based: the label files count classes from 1.
        pixels: how a box in pixels is read when the policy for `pixel-coordinates` is to repair it: `centre`
            (centre and size), `corners` (left, top, right, bottom) or `top-left` (left, top, width, height).
        duplicate_digits: rows that agree to this many digits are duplicates; None: only equal rows.
    """
    laid = lay_out(source)
    rules = _rules(laid, oriented, one_based, pixels, duplicate_digits)
    wanted = split and (split_word(split) or split)
    described = {} if laid.found.description is None else laid.found.description.splits
    if wanted is not None and wanted not in {*laid.splits, *described}:
        raise UsageError(f"the dataset has no split {split!r}", where=source, expected=nearest(wanted, laid.splits))
    return BoxSource(laid, wanted, known_task(task), rules, policy)


def check(
    source: Path,
    report: DataReport,
    *,
    task: str | None = None,
    signature: Signature | None = None,
    quick: bool = False,
    oriented: bool | None = None,
    one_based: bool = False,
    pixels: str = "centre",
    duplicate_digits: int | None = None,
) -> None:
    """Report every fault of every file.

    Args:
        source: the folder, or its data.yaml.
        report: where to.
        task: as in `read`.
        signature: not needed here: the samples are images and answers, not yet model inputs.
        quick: read the images' headers only, decode none.
        oriented, one_based, pixels, duplicate_digits: as in `read`.
    """
    laid = lay_out(source)
    rules = _rules(laid, oriented, one_based, pixels, duplicate_digits)
    survey.survey(laid, report, rules, known_task(task), quick=quick)


def fix(
    source: Path,
    out: Path,
    *,
    task: str | None = None,
    signature: Signature | None = None,
    oriented: bool | None = None,
    one_based: bool = False,
    pixels: str = "centre",
    duplicate_digits: int | None = None,
) -> list[str]:
    """Write a repaired copy into the empty folder `out` and say each change in a line.

    Raises:
        DataError: nothing is there to repair: no images, or no labels.
    """
    laid = lay_out(source)
    rules = _rules(laid, oriented, one_based, pixels, duplicate_digits)
    report = DataReport(str(source), codes=CODES)
    return repair(laid, report, rules, known_task(task), out)


def _rules(laid: Layout, oriented: bool | None, one_based: bool, pixels: str, duplicate_digits: int | None) -> Rules:
    if pixels not in READINGS:
        raise UsageError(
            f"no way to read pixels is called {pixels!r}", where="pixels", expected=nearest(pixels, READINGS)
        )
    return Rules(laid.names, laid.nc, one_based, oriented, pixels, duplicate_digits)
