# SPDX-License-Identifier: Apache-2.0
"""What became of the rows, counted while they are read, as lines of the record that grow with it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from fewbit.record import Record


class Tally:
    """Counts of one reading, written into a record.

    Args:
        record: the source's, which a run's record takes over.
        columns: the columns that are read.
        unused: those that hold text too.
        pack: how samples are made of rows.
        seqlen: the most tokens of a sample.
    """

    def __init__(self, record: Record, *, columns: Sequence[str], unused: Sequence[str], pack: str, seqlen: int):
        self._record = record
        self._columns, self._unused = list(columns), list(unused)
        self._pack, self.seqlen = pack, seqlen
        self._lines: dict[str, dict[str, Any]] = {}
        self._seen: set[bytes] = set()
        self._refusals: list[str] = []
        self.rows = self.empty = self.repeated = self.cut = self.longer = 0
        self.samples = self.tokens = self.padding = self.left_over = 0

    def row(self, ids: Sequence[int]) -> bool:
        """Count a row; whether it has any tokens."""
        self.rows += 1
        if not ids:
            self.empty += 1
            return False
        digest = blake2b(np.asarray(ids, dtype=np.int64).tobytes(), digest_size=16).digest()
        self.repeated += digest in self._seen
        self._seen.add(digest)
        return True

    def sample(self, tokens: int, padding: int = 0) -> None:
        """Count a sample, and bring the record up to date."""
        self.samples += 1
        self.tokens += tokens
        self.padding += padding
        self.write()

    def refuse(self, why: str) -> None:
        """Count a chat that the template would not take."""
        self._refusals.append(why)

    def write(self) -> None:
        """Bring the record up to date."""
        of = f"the text of a row is in {', '.join(self._columns)}"
        rest = f"; not used: {', '.join(self._unused)}" if self._unused else ""
        how = "joined and cut" if self._pack == "concatenate" else "one a sample, cut"
        said = f"{of}{rest}; {self.rows} rows became {self.samples} samples, {how} at {self.seqlen} tokens"
        whole = self.tokens + self.padding
        self._say(
            "tokenized", said, rows=self.rows, samples=self.samples, tokens=self.tokens, seqlen=self.seqlen,
            pack=self._pack, padding=self.padding / whole if whole else 0.0, left_over=self.left_over,
        )  # fmt: skip
        if self.cut:
            self._say("truncated", f"{self.cut} rows had more than {self.seqlen} tokens", rows=self.cut)
        if self.longer:
            why = f"{self.longer} rows with pictures had more than {self.seqlen} tokens and were kept whole"
            self._say("not-truncated", why, rows=self.longer)
        if self.empty:
            self._say("empty-text", f"{self.empty} rows had no text and were left out", rows=self.empty)
        if self.repeated:
            self._say("repeated-text", f"{self.repeated} rows say what one before them said", rows=self.repeated)
        if count := len(self._refusals):
            why = f"the chat template refused {count} rows, which were read without it: {self._refusals[0]}"
            self._say("chat-template", why, rows=count)

    def _say(self, what: str, reason: str, **facts: Any) -> None:
        if what in self._lines:
            self._lines[what].update(reason=reason, **facts)
        else:
            self._record.note(what, reason, **facts)
            self._lines[what] = self._record.lines[-1]

    def forget(self) -> None:
        """Take the lines back, for a reading that starts again."""
        mine = list(map(id, self._lines.values()))
        self._record.lines[:] = [line for line in self._record.lines if id(line) not in mine]
        self._lines.clear()
