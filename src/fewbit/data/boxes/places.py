# SPDX-License-Identifier: Apache-2.0
"""Where the label of an image belongs, by the names of its folders alone.

The label has the image's name with `.txt`, in the folder that comes from replacing the *last* folder called
`images` by `labels`; where no folder is called so, it lies beside its image. Only whole folder names count:
`my_images.v2/images/images_01.jpg` has its label in `my_images.v2/labels/images_01.txt`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from fewbit.data.images import sniff


def label_folder(folder: str, root: str) -> str:
    """Where the labels of the images in a folder belong.

    Args:
        folder: the images' folder, absolute.
        root: the dataset's folder; only below it is a folder called `images` sure to be the dataset's.

    >>> label_folder("/home/images/set/images/train", "/home/images/set")
    '/home/images/set/labels/train'
    """
    prefix = os.path.join(root, "")
    if not folder.startswith(prefix):
        return swap_last(folder, "images", "labels") or folder
    swapped = swap_last(folder[len(prefix) :], "images", "labels")
    if swapped:
        return prefix + swapped
    above = swap_last(folder, "images", "labels")
    return above if above and os.path.isdir(above) else folder


def swap_last(path: str, old: str, new: str) -> str | None:
    """The path with its last folder of the old name renamed, or `None` when there is none."""
    parts = path.split(os.sep)
    if old not in parts:
        return None
    last = len(parts) - 1 - parts[::-1].index(old)
    return os.sep.join([*parts[:last], new, *parts[last + 1 :]])


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
