# SPDX-License-Identifier: Apache-2.0
"""Columns that name image or audio files: find the file, decode it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fewbit.data.files import Folder
from fewbit.data.types import DataReport, Files, Issue, IssueType, Location, SampleError, Severity

MOST_BYTES = 1 << 30

MEDIA_MISSING = IssueType(
    "media-missing", Severity.ERROR, "row that names a file that is not there",
    "put the files next to the table, or correct the names", "raise", ("drop",), "leaves the row out",
)  # fmt: skip
ISSUES = (MEDIA_MISSING,)


@dataclass(frozen=True)
class MediaFiles:
    """The files a table names.

    Args:
        files: of the dataset; for a single table on disk, those of its folder.
        kind: `image` or `audio`.
    """

    files: Files | None
    kind: str

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.files.names()) if self.files is not None else frozenset()

    def find(self, value: Any, table_file: str) -> str | None:
        """The name of the file a value means: relative to the table, or to the dataset."""
        if not isinstance(value, str):
            return None
        name = value.replace("\\", "/").removeprefix("./")
        folder = table_file.rpartition("/")[0]
        candidates = [f"{folder}/{name}" if folder else name, name]
        return next((candidate for candidate in candidates if candidate in self._names), None)

    def load(self, value: Any, location: Location, report: DataReport | None = None) -> dict[str, Any]:
        """The keys a value gives a sample: `image`, or `audio` and `sampling_rate`.

        Raises:
            SampleError: the file is not there or is damaged.
        """
        if isinstance(value, np.ndarray):
            return {self.kind: value}
        content, name = self._content(value, location)
        file_location = Location(
            name or location.file, location.line, location.row, index=location.index, field=location.field
        )
        if self.kind == "image":
            from fewbit.data.images.decode import decode_image

            return {"image": decode_image(content, file_location, report=report)}
        return _audio(content, file_location)

    def _content(self, value: Any, location: Location) -> tuple[bytes, str]:
        if isinstance(value, bytes):
            return value, ""
        if isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes):
            return value["bytes"], ""
        path = value.get("path") if isinstance(value, Mapping) else value
        name = self.find(path, location.file)
        if name is None or self.files is None:
            raise SampleError(Issue(MEDIA_MISSING, f"there is no file {str(path)[:200]!r}", location))
        return self.files.read(name, MOST_BYTES), name

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files, "kind": self.kind}


def media_files(files: Files | None, kind: str) -> MediaFiles:
    """The files next to a table; a table that was opened alone has its folder's."""
    if files is not None and len(names := files.names()) == 1 and (path := files.path(names[0])) is not None:
        return MediaFiles(Folder(Path(path).parent), kind)
    return MediaFiles(files, kind)


def _audio(content: bytes, location: Location) -> dict[str, Any]:
    from fewbit.data.audio import decode_audio

    samples, rate = decode_audio(content, location)
    return {"audio": samples, "sampling_rate": rate}
