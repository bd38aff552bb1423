# SPDX-License-Identifier: Apache-2.0
"""All tokens of a dataset in one file of arrays, read through a memory map and kept in the user's cache.

Layout: tokens as they come, then the other arrays, then a JSON index of them, then its length in eight bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from fewbit.data.loading.views import View
from fewbit.data.text.assistant_mask import MASK_UNAVAILABLE, TEMPLATE_ERROR
from fewbit.data.text.content import NO_TEXT
from fewbit.data.text.roles import Ints
from fewbit.data.text.tokenize import Encoded
from fewbit.data.types import Issue, IssueType, Location, Sample, Severity
from fewbit.errors import DataError

_KNOWN = {kind.code: kind for kind in (NO_TEXT, MASK_UNAVAILABLE, TEMPLATE_ERROR)}
_TAIL = struct.Struct("<Q")


def tokenize(encoded: Iterable[tuple[int, Encoded | Issue]], key: str | None) -> TokenTable:
    """The table of encoded samples, from the cache if it is there.

    Args:
        encoded: position of each row, and its tokens or the issue; read only if the cache has no table.
        key: everything the tokens depend on; `None` keeps them in memory.
    """
    if key is None:
        stream = BytesIO()
        write_table(stream, encoded)
        return TokenTable(np.frombuffer(stream.getbuffer(), np.uint8))
    from fewbit.data.cache import cached_file

    return TokenTable(cached_file(key, lambda stream: write_table(stream, encoded)))


def write_table(stream: BinaryIO, encoded: Iterable[tuple[int, Encoded | Issue]]) -> None:
    """Write tokens as they come, and everything else behind them."""
    columns: dict[str, list[Any]] = {"roles": [], "position": [], "length": []}
    dropped: list[Any] = []
    fields: frozenset[str] | None = None
    size = 0
    for position, result in encoded:
        if isinstance(result, Issue):
            dropped.append([result.code, result.type.meaning, result.message, astuple(result.location)])
            continue
        extra = _extra(result)
        fields = frozenset(extra) if fields is None else fields
        if fields != frozenset(extra):
            raise DataError(
                "samples of different kinds", code="samples-differ", where=f"row {position}",
                expected=", ".join(sorted(fields)) or "tokens only",
                hint="give all samples the same fields",
            )  # fmt: skip
        size += stream.write(result.ids.astype("<i4").tobytes())
        columns["roles"].append(result.roles)
        columns["position"].append([position])
        columns["length"].append([len(result.ids)])
        for name, value in extra.items():
            columns.setdefault(name, []).append(np.atleast_1d(value))
    index: dict[str, Any] = {"ids": ["<i4", 0, size // 4]}
    for name, arrays in columns.items():
        array = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
        array = array.astype(np.uint8 if name in ("roles", "token_type_ids") else "<i8")
        stream.write(b"\0" * (-size % 8))
        size += -size % 8
        index[name] = [array.dtype.str, size, len(array)]
        size += stream.write(array.tobytes())
    tail = orjson.dumps({"arrays": index, "dropped": dropped})
    stream.write(tail + _TAIL.pack(len(tail)))


class TokenTable:
    """Tokens by sample.

    Args:
        data: the file, or its bytes.
    """

    def __init__(self, data: Path | np.ndarray):
        self._data = data
        self._open()

    def _open(self) -> None:
        memory = np.memmap(self._data, np.uint8, "r") if isinstance(self._data, Path) else self._data
        (size,) = _TAIL.unpack(memory[-_TAIL.size :].tobytes())
        tail = orjson.loads(memory[-_TAIL.size - size : -_TAIL.size].tobytes())
        self._arrays = {
            name: memory[start : start + count * np.dtype(kind).itemsize].view(kind)
            for name, (kind, start, count) in tail["arrays"].items()
        }
        self.lengths: Ints = np.array(self._arrays["length"], np.int64)
        self.positions: Ints = np.array(self._arrays["position"], np.int64)
        self._ends = np.cumsum(self.lengths)
        self.dropped: Sequence[Issue] = [_issue(*entry) for entry in tail["dropped"]]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getstate__(self) -> dict[str, Any]:
        return {"_data": self._data}  # another process maps the file again

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._data = state["_data"]
        self._open()

    def sample(self, index: int) -> Sample:
        """The fields of one sample; the arrays are its own."""
        end = int(self._ends[index])
        tokens = slice(end - int(self.lengths[index]), end)
        ids = self._arrays["ids"][tokens].astype(np.int64)
        sample: Sample = {"input_ids": ids, "roles": np.array(self._arrays["roles"][tokens])}
        if "answer" in self._arrays:
            first, last = self._arrays["answer"][2 * index : 2 * index + 2].tolist()
            sample |= {"start_positions": first, "end_positions": last}
        elif "class" in self._arrays:
            sample["labels"] = int(self._arrays["class"][index])
        elif "labels" in self._arrays:
            sample["labels"] = np.array(self._arrays["labels"][tokens], np.int64)
        else:
            sample["labels"] = ids.copy()
        if "token_type_ids" in self._arrays:
            sample["token_type_ids"] = self._arrays["token_type_ids"][tokens].astype(np.int64)
        return sample


class TokenView(View):
    """The samples of a view that have tokens."""

    varies = False

    def __init__(self, inner: View, table: TokenTable):
        super().__init__(inner)
        self._table = table

    def __len__(self) -> int:
        return len(self._table)

    def get(self, index: int, epoch: int = 0) -> Sample:
        """The tokens of one sample."""
        return self._table.sample(index)

    def location(self, index: int) -> Location:
        """Where a sample comes from."""
        return self.inner.location(int(self._table.positions[index]))

    def lengths(self) -> Ints:
        """Tokens of each sample."""
        return self._table.lengths

    def strata(self) -> Sequence[Any] | None:
        """Class of each sample, if known."""
        strata = self.inner.strata()
        return None if strata is None else [strata[int(position)] for position in self._table.positions]


def _extra(encoded: Encoded) -> dict[str, Any]:
    """What a sample has besides tokens and roles."""
    extra: dict[str, Any] = {}
    if encoded.answer is not None:
        extra["answer"] = encoded.answer
    elif isinstance(encoded.target, np.ndarray):
        extra["labels"] = encoded.target
    elif encoded.target is not None:
        extra["class"] = encoded.target
    if encoded.token_type_ids is not None:
        extra["token_type_ids"] = encoded.token_type_ids
    return extra


def _issue(code: str, meaning: str, message: str, location: Sequence[Any]) -> Issue:
    kind = _KNOWN.get(code) or IssueType(
        code, Severity.WARNING, meaning, "see `fewbit check`", "drop", ("raise", "drop")
    )
    return Issue(kind, message, Location(*location))
