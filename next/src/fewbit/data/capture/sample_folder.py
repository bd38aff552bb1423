# SPDX-License-Identifier: Apache-2.0
"""A folder of recorded samples: `input0000.npz`, `input0001.npz`, … and `manifest.json`, which names them.

The folder appears when all samples are written. An earlier recording is replaced then, and only if every file in the
folder is named in its manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from fewbit.data.arrays.files import write_npz
from fewbit.data.capture.samples import Array
from fewbit.errors import DataError, UsageError
from fewbit.output import check_output, open_output
from fewbit.record.schema import plain

MANIFEST = "manifest.json"
_WRITTEN_BY = "fewbit capture"


class SampleFolder:
    """A recording that is running.

    Attributes:
        count: samples so far.
        manifest: what `manifest.json` says: files, and type and shape of the inputs in the first sample.
    """

    def __init__(self, folder: Path, limit: int | None):
        self._folder, self._limit, self.count = folder, limit, 0
        self.manifest: dict[str, Any] = {"written_by": _WRITTEN_BY, "inputs": {}}

    @property
    def full(self) -> bool:
        """Whether no more samples are kept, so that a loop may stop."""
        return self._limit is not None and self.count >= self._limit

    def add(self, sample: Mapping[str, Array]) -> None:
        """Write one sample, unless there are enough."""
        if self.full:
            return
        write_npz(self._folder / f"input{self.count:04}.npz", sample)
        self.count += 1
        for name, array in sample.items():
            self.manifest["inputs"].setdefault(name, f"{array.dtype} {list(array.shape)}")

    def finish(self) -> None:
        """Write the manifest.

        Raises:
            DataError: there is no sample.
        """
        if not self.count:
            raise DataError(
                "no sample was recorded", code="capture-empty", expected="at least one call of the model",
                hint="call model(...), not model.forward(...); and check that the loader is not empty",
            )  # fmt: skip
        files = sorted(path.name for path in self._folder.glob("*.npz"))
        self.manifest = plain({**self.manifest, "samples": self.count, "files": files})
        (self._folder / MANIFEST).write_bytes(orjson.dumps(self.manifest, option=orjson.OPT_INDENT_2))


@contextmanager
def sample_folder(path: Path, *, limit: int | None = None, overwrite: bool = False) -> Iterator[SampleFolder]:
    """Write samples into a folder, which appears if the block ends without error.

    Args:
        path: a new folder.
        limit: how many samples to keep; all by default.
        overwrite: replace an earlier recording.
    """
    check_sample_folder(path, overwrite=overwrite)
    with open_output(path, overwrite=overwrite, is_file=False, ours=True) as output:
        output.clear()
        folder = SampleFolder(output.work, limit)
        yield folder
        folder.finish()


def check_sample_folder(path: Path, *, overwrite: bool, inputs: Sequence[Path] = ()) -> None:
    """Refuse a folder before any work starts: it lies in the inputs, or holds what may not be replaced."""
    present = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    foreign = [name for name in present if name not in _own_files(path) or not (path / name).is_file()]
    if foreign:
        raise UsageError(
            f"{path} holds {foreign[0]}, which is not of an earlier recording", code="output-foreign", param="output",
            expected="a new folder, or an earlier recording", hint="another {output}",
        )  # fmt: skip
    check_output(path, overwrite=overwrite, inputs=inputs, is_file=False, ours=True)


def _own_files(path: Path) -> set[str]:
    try:
        manifest = orjson.loads((path / MANIFEST).read_bytes())
        return {MANIFEST, *map(str, manifest["files"])} if manifest["written_by"] == _WRITTEN_BY else set()
    except (OSError, ValueError, KeyError, TypeError):
        return set()
