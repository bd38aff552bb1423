# SPDX-License-Identifier: Apache-2.0
"""Checking many images at once: order, memory, duplicates."""

import io
import threading

import numpy as np
from PIL import Image

from fewbit.data.files import Folder
from fewbit.data.images.inspect import equal_files, in_threads, inspect_images
from fewbit.data.types import DataReport


def encoded(number, format="PNG", size=(12, 11), **options):
    stream = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, format, **options)
    return stream.getvalue()


def dataset(root, contents):
    for name, content in contents.items():
        (root / name).write_bytes(content)
    return Folder(root)


def test_issues_come_in_the_order_of_the_names(tmp_path):
    contents = {f"{number:03}.png": b"" if number % 3 == 0 else encoded(number) for number in range(100)}
    files = dataset(tmp_path, contents)
    for _ in range(3):
        report = DataReport(on_error={"image-empty": "drop"})
        inspection = inspect_images(files, files.names(), report)
        damaged = [name for name, content in contents.items() if not content]
        assert [issue.location.file for issue in report.issues] == damaged == list(inspection.damaged)
        assert inspection.dropped == set(damaged) and len(inspection.headers) == 66
        assert report.facts == {"image_sizes": "11 x 12", "image_formats": "PNG"}
        assert inspection.sizes["001.png"] == len(contents["001.png"])


def test_only_a_few_inputs_are_taken_ahead():
    taken, lock = [0], threading.Lock()

    def inputs():
        for number in range(100_000):
            with lock:
                taken[0] += 1
            yield number

    results = in_threads(lambda number: number * 2, inputs())
    assert [next(results) for _ in range(5)] == [0, 2, 4, 6, 8]
    assert taken[0] <= 300
    results.close()


def test_a_file_that_vanishes_is_an_issue_and_equal_to_none(tmp_path):
    contents = {"a.png": encoded(1), "b.png": encoded(1), "c.png": encoded(1), "d.png": encoded(2)}
    files = dataset(tmp_path, contents)
    names, sizes = files.names(), dict.fromkeys(contents, 9)
    (tmp_path / "a.png").unlink()
    report = DataReport()
    inspect_images(files, names, report)
    assert report.counts == {"file-unreadable": 1}
    assert equal_files(files, names, sizes) == [["b.png", "c.png"]]


def test_a_truncated_jpeg_is_found_although_only_an_eighth_is_decoded(tmp_path):
    content = encoded(0, "JPEG", (256, 256), quality=90)
    files = dataset(tmp_path, {"a.jpg": content, "b.jpg": content[:-2000]})
    report = DataReport()
    inspect_images(files, files.names(), report)
    assert [(issue.code, issue.location.file) for issue in report.issues] == [("image-truncated", "b.jpg")]
