# SPDX-License-Identifier: Apache-2.0
"""The names of a YOLO dataset's files: what a path means, what is below a folder, where the label file of an image is.

Names are relative to the dataset's folder or archive; absolute ones lie outside of it, where only folders that a path
names are listed. `Folder.open` takes both.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from fewbit.data.detection import issues
from fewbit.data.files import Folder, walk
from fewbit.data.splits import split_of_folder
from fewbit.data.types import DataReport, Files, Location

MOST_OUTSIDE = 1_000_000
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/boot/", "/run/")
_TOO_WIDE = frozenset(
    ("/", "/bin", "/home", "/lib", "/media", "/mnt", "/opt", "/root", "/sbin", "/srv", "/tmp", "/usr", "/Users", "/var")
)


class Tree:
    """The files of a dataset.

    Attributes:
        alone: the data.yaml that was given alone, which stands for its folder.
        home: the dataset's folder on this machine; `None` for an archive.
        top: the folder where the dataset begins: archives often have a single one at the top, which means nothing.
    """

    def __init__(self, files: Files):
        names = files.names()
        self.alone = names[0] if len(names) == 1 and is_yaml(names[0]) else None
        self.home: str | None = None
        if isinstance(files, Folder) and names:
            self.home = str(Path(os.path.abspath(files.path(names[0]) or "")).parents[names[0].count("/")])
            files = Folder(Path(self.home), files.root) if self.alone else files
        self.files, self.names = files, files.names()
        tops = {name.partition("/")[0] if "/" in name else "" for name in self.names}
        top = tops.pop() if len(tops) == 1 else ""
        self.top = "" if top.lower() in ("images", "labels") or split_of_folder(top) else top
        self.folders = {""}
        for folder in map(posixpath.dirname, self.names):
            while folder not in self.folders:
                self.folders.add(folder)
                folder = posixpath.dirname(folder)
        self._known = {*self.folders, *self.names}
        self._by_key = {key_of(name): name for name in self._known}
        self._label_folders: dict[str, str] = {}  # of each folder of images that was asked for

    def absolute(self, name: str) -> str:
        """Where a name is on this machine; the name itself inside of an archive."""
        return os.path.normpath(os.path.join(self.home or "", name))

    def resolve(self, path: str, start: str) -> str | None:
        """The name of what a path, as written, leads to; `None` if it leads out of an archive."""
        name = posixpath.normpath(posixpath.join(start, path.replace("\\", "/")))
        if posixpath.isabs(name) or name == ".." or name.startswith("../"):
            if self.home is None or "\0" in name:
                return None
            name = self.absolute(name)
            for home in (self.home, os.path.realpath(self.home)):
                if name == home or name.startswith(os.path.join(home, "")):
                    return name[len(home) :].strip("/")
        return "" if name == "." else name

    def find(self, name: str) -> str | None:
        """The file or folder of this name, in whichever case, and whichever way its accents are encoded."""
        if posixpath.isabs(name):
            forms = (name, *(unicodedata.normalize(form, name) for form in ("NFC", "NFD")))
            return next((form for form in forms if os.path.exists(form)), None)
        return name if name in self._known else self._by_key.get(key_of(name))

    def is_folder(self, name: str) -> bool:
        """Whether a name that was found is a folder."""
        return name in self.folders or (posixpath.isabs(name) and os.path.isdir(name))

    def below(self, folder: str, report: DataReport) -> Iterator[str]:
        """Every file below a folder."""
        if not posixpath.isabs(folder):
            yield from (name for name in self.names if name.startswith(f"{folder}/" if folder else ""))
            return
        names = walk(Path(folder), report)
        yield from (posixpath.join(folder, name) for name in itertools.islice(names, MOST_OUTSIDE))
        if next(names, None) is not None:
            report.add(issues.SPLIT_TOO_WIDE, f"only the first {MOST_OUTSIDE:,} files were read", Location(folder))

    def reason_not_to_read(self, name: str) -> str | None:
        """Why a folder or file outside of the dataset is not read, if it is not."""
        if not posixpath.isabs(name):
            return None
        if is_system(name):
            return f"{name} belongs to the system"
        above = os.path.realpath(self.home or "").startswith(os.path.join(os.path.realpath(name), ""))
        return f"{name} holds the dataset itself" if above else None

    def expected_label(self, image: str) -> str:
        """Where the label file of an image is looked for."""
        folder, file = posixpath.split(image)
        if folder not in self._label_folders:
            labels = _renamed(folder)
            if labels is None and self.home is not None:  # the folder of the images may have been given
                above = _renamed(self.absolute(folder))
                labels = above if above and os.path.isdir(above) else None
            self._label_folders[folder] = folder if labels is None else labels
        return posixpath.join(self._label_folders[folder], f"{posixpath.splitext(file)[0]}.txt")

    def label_of(self, image: str) -> str:
        """The label file of an image; empty if there is none."""
        return self.find(self.expected_label(image)) or ""


def _renamed(folder: str) -> str | None:
    """A folder with its last part called `images` renamed to `labels`; `None` if no part is called so."""
    segments = folder.split("/")
    for position in reversed(range(len(segments))):
        if segments[position].lower() == "images":
            return "/".join([*segments[:position], "labels", *segments[position + 1 :]])
    return None


@lru_cache(1 << 12)
def is_system(path: str) -> bool:
    """Whether a path belongs to the operating system, or is too wide to be a folder of images."""
    real = os.path.realpath(path)
    return real in _TOO_WIDE or (f"{real}/".startswith(_SYSTEM) and not real.startswith("/dev/shm/"))


def key_of(name: str) -> str:
    """Equal for names that differ only in case or in how an accent is encoded."""
    return unicodedata.normalize("NFC", name).lower()


def is_yaml(name: str) -> bool:
    """Whether a file is named like a YAML file."""
    return name.lower().endswith((".yaml", ".yml"))
