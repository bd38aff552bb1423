# SPDX-License-Identifier: Apache-2.0
"""Tiny YOLO datasets for the tests of that format."""

import io

import numpy as np
from PIL import Image

from fewbit.data.findings import DataReport, Policy
from fewbit.data.formats import yolo

BOX = "0 0.5 0.5 0.2 0.2\n"
OUTLINE = "1 0.1 0.1 0.5 0.1 0.5 0.5 0.3 0.7 0.1 0.5\n"


def png(width=20, height=10, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def fill(folder, files):
    """Write files by relative name; an image that is given as None gets pixels of its own."""
    for number, (name, content) in enumerate(files.items()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            content = png(seed=number + 1)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def flat(folder, **labels):
    """The flat layout with one image a label file; `labels` gives the texts by stem."""
    images = {f"images/{stem}.png": None for stem in labels}
    texts = {f"labels/{stem}.txt": text for stem, text in labels.items() if text is not None}
    return fill(folder, {**images, **texts, "classes.txt": "cat\ndog\n"})


def split_set(tmp_path, yaml):
    """Two images in train and two in val, with the text of a data.yaml or none."""
    files = {f"images/{split}/{split}{i}.png": None for split in ("train", "val") for i in range(2)}
    files |= {f"labels/{split}/{split}{i}.txt": BOX for split in ("train", "val") for i in range(2)}
    return fill(tmp_path, {**files, "data.yaml": yaml} if yaml else files)


def check(source, **options):
    report = DataReport(str(source), codes=yolo.CODES)
    yolo.check(source, report, **options)
    return report


def read(source, policy=None, **options):
    return yolo.read(source, policy=Policy(yolo.CODES, policy), **options)


def places(report, code):
    return [str(finding.place) for finding in report.findings if finding.code == code]


def tree(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
