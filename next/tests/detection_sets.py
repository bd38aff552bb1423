# SPDX-License-Identifier: Apache-2.0
"""Small datasets of images with boxes, for the tests of YOLO, COCO and Pascal VOC."""

import io

import numpy as np
from PIL import Image

from fewbit.data.files import Folder
from fewbit.data.opening import open_source, scan_source

BOX = "0 0.5 0.5 0.2 0.2\n"
OUTLINE = "1 0.1 0.1 0.5 0.1 0.5 0.5 0.3 0.7 0.1 0.5\n"


def png(width=20, height=10, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def fill(folder, files):
    """Write files by relative name; an image given as None gets pixels of its own."""
    for number, (name, content) in enumerate(files.items()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            content = png(seed=number + 1)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def flat(folder, **labels):
    """The flat YOLO layout with two classes; label texts by stem, None for no label file."""
    images = {f"images/{stem}.png": None for stem in labels}
    texts = {f"labels/{stem}.txt": text for stem, text in labels.items() if text is not None}
    return fill(folder, {**images, **texts, "classes.txt": "cat\ndog\n"})


def split_set(folder, yaml):
    """Two images in train and two in val, with the text of a data.yaml or without one."""
    files = {f"images/{split}/{split}{i}.png": None for split in ("train", "val") for i in range(2)}
    files |= {f"labels/{split}/{split}{i}.txt": BOX for split in ("train", "val") for i in range(2)}
    return fill(folder, {**files, "data.yaml": yaml} if yaml else files)


def check(data, data_format="yolo", **options):
    """The report of a full scan."""
    return scan(data, data_format, depth="full", **options)[1]


def scan(data, data_format="yolo", *, depth="index", task=None, split=None, on_error=None, **options):
    return scan_source(
        data, data_format=data_format, data_option=options, task=task, split=split, on_error=on_error, depth=depth
    )


def read(data, data_format="yolo", *, on_error=None, task=None, split=None, **options):
    """The source, or an error for issues that stop a reader."""
    return open_source(data, data_format=data_format, data_option=options, task=task, split=split, on_error=on_error)[0]


def places(report, code):
    return [str(issue.location) for issue in report.issues if issue.code == code]


def codes(issues):
    return [issue.code for issue in issues]


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def confidence(folder, detect):
    detection = detect(Folder(folder))
    return 0.0 if detection is None else detection.confidence
