# SPDX-License-Identifier: Apache-2.0
"""The numbers of a run, one JSON line each: only ever appended to, so that nothing that was seen is lost.

A line is `{"kind": "step", "step": 12, "loss": …}`, or of kind `eval`, `prune` or `resume`. A run that was killed had
lines after its last checkpoint; the `resume` line says from which step they count no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

Line = dict[str, Any]


class MetricsLog:
    """Takes the lines of a run, and remembers them.

    Args:
        folder: of the run, for `metrics.jsonl` and `tensorboard/`; none to remember only.
        tensorboard: write for TensorBoard too; where it is installed, if none.
        resumed: the step that a run goes on from; a file that is there is read, and the lines that still count are
            remembered.
    """

    def __init__(self, folder: Path | None, *, tensorboard: bool | None = False, resumed: int | None = None):
        self.lines: list[Line] = []
        self._file = self._board = None
        if folder is None:
            return
        path = folder / "metrics.jsonl"
        torn = path.is_file() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
        self._file = path.open("ab")
        if torn:  # by a kill in the middle of a line
            self._file.write(b"\n")
        if tensorboard or (tensorboard is None and find_spec("tensorboard") is not None):
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(
                str(folder / "tensorboard"), purge_step=None if resumed is None else resumed + 1
            )
        if resumed is not None:
            self.write([{"kind": "resume", "step": resumed}])
            self.lines = read_lines(path)

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append lines, and have them on their way to the disk."""
        new = [dict(line) for line in lines]
        self.lines += [line for line in new if line["kind"] != "resume"]
        if self._file is not None:
            self._file.writelines(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in new)
            self._file.flush()
        if self._board is not None:
            for line in new:
                for name, value in line.items():
                    if isinstance(value, int | float) and name not in ("step", "epoch"):
                        self._board.add_scalar(f"{line['kind']}/{name}", value, line["step"])

    def of(self, kind: str) -> list[Line]:
        """The lines of a kind, in their order."""
        return [line for line in self.lines if line["kind"] == kind]

    def close(self) -> None:
        """Nothing more will come."""
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()


def read_lines(path: Path) -> list[Line]:
    """The lines of a file that count: without those after the step that a later part of the run went on from.

    A line that was torn by a kill is passed over; what it said was written again when the run went on.
    """
    lines: list[Line] = []
    for text in path.read_bytes().split(b"\n"):
        try:
            line = orjson.loads(text)
        except orjson.JSONDecodeError:
            continue
        if not isinstance(line, dict) or "kind" not in line:
            continue
        if line["kind"] == "resume":
            lines = [each for each in lines if each["step"] <= line["step"]]
        else:
            lines.append(line)
    return lines
