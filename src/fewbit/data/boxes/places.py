# SPDX-License-Identifier: Apache-2.0
"""Where the label of an image belongs, by the names of its folders alone.

The label has the image's name with `.txt`, in the folder that comes from replacing the *last* folder called
`images` by `labels`; where no folder is called so, it lies beside its image. Only whole folder names count:
`my_images.v2/images/images_01.jpg` has its label in `my_images.v2/labels/images_01.txt`. A name is taken as it is
written before it is taken in another case (`Images`, `LABELS`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from fewbit.data.images import sniff
from fewbit.data.split_names import split_word


def label_folder(folder: str, root: str) -> str:
    """Where the labels of the images in a folder belong.

    Args:
        folder: the images' folder, absolute.
        root: the dataset's folder; only below it is a folder called `images` sure to be the dataset's.

    >>> label_folder("/home/images/set/images/train", "/home/images/set")
    '/home/images/set/labels/train'
    """
    prefix = os.path.join(root, "")
    if not os.path.join(folder, "").startswith(prefix):
        return swap_last(folder, "images", "labels") or folder
    below = swap_last(folder, "images", "labels", start=len(prefix))
    if below:
        return below
    above = swap_last(folder, "images", "labels")
    return above if above and os.path.isdir(above) else folder


def dataset_root(images: str, labels: str) -> str:
    """The folder of the dataset to which these folders of images and labels belong, by their names.

    >>> dataset_root("/set/train/images", "/set/train/labels"), dataset_root("/set/images/val", "/set/labels/val")
    ('/set', '/set')
    """
    shared = os.path.commonpath([images, labels])
    above, name = os.path.split(shared)
    return above if split_of(name) else shared


def split_of(name: str) -> str | None:
    """The split that a folder is named for, also with a year (`val2017`)."""
    return split_word(re.sub(r"[0-9]{4}$", "", name))


def swap_last(path: str, old: str, new: str, start: int = 0) -> str | None:
    """The path with its last folder of the old name renamed, or `None` when there is none from `start` on."""
    parts = path[start:].split(os.sep)
    last = last_named(parts, old)
    if last is None:
        return None
    above = path[:start] + "".join(part + os.sep for part in parts[:last])
    spelled = new.upper() if parts[last].isupper() else new.title() if parts[last].istitle() else new
    return os.path.join(folder_named(above, spelled), *parts[last + 1 :])


def last_named(parts: Sequence[str], name: str) -> int | None:
    """Where the last part of this name stands; where none is written so, the last one in another case."""
    exact = [place for place, part in enumerate(parts) if part == name]
    alike = exact or [place for place, part in enumerate(parts) if part.lower() == name]
    return alike[-1] if alike else None


def folder_named(parent: str, name: str) -> str:
    """The folder of this name, or the one in another case if only that is there; it need not be there at all."""
    path = os.path.join(parent, name)
    if os.path.isdir(path):
        return path
    try:
        alike = sorted(other for other in os.listdir(parent) if other.lower() == name.lower())
    except OSError:
        return path
    return next((found for other in alike if os.path.isdir(found := os.path.join(parent, other))), path)


def topmost(folders: Iterable[str]) -> list[str]:
    """The folders that lie in none of the others."""
    top: list[str] = []
    for folder in sorted(folders, key=lambda folder: folder.split(os.sep)):
        if not top or not folder.startswith(os.path.join(top[-1], "")):
            top.append(folder)
    return top


def stem(name: str) -> str:
    """A name without its suffix.

    >>> stem("images/a.b.jpg")
    'images/a.b'
    """
    return name[: len(name) - len(sniff.suffix(name))]
