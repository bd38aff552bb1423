# SPDX-License-Identifier: Apache-2.0
"""All tokens of a dataset in one file, read through a memory map and kept in the user's cache.

Layout: a record per token (`input_ids`, `roles` and whatever else has one value per token), then a record per sample
(`position` in the data, `end` among the tokens, a class or the positions of an answer), then JSON with the types of the
records and what was left out, then the length of the JSON in eight bytes.
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

from fewbit.data.cache import cached_file
from fewbit.data.loading.views import View
from fewbit.data.text.assistant_mask import MASK_UNAVAILABLE, TEMPLATE_ERROR
from fewbit.data.text.content import NO_TEXT
from fewbit.data.text.roles import Ints
from fewbit.data.types import Issue, IssueType, Location, Sample, Severity
from fewbit.errors import DataError

_KNOWN = {kind.code: kind for kind in (NO_TEXT, MASK_UNAVAILABLE, TEMPLATE_ERROR)}
_TAIL = struct.Struct("<Q")
_SMALL = {"roles": "u1", "token_type_ids": "u1"}  # of the other fields any token id fits into 32 bits


def token_table(view: View, encoded: Iterable[tuple[int, Sample | Issue]], key: str | None) -> TokenTable:
    """The tokens of a view, from the cache if they are there.

    Args:
        view: says where samples come from.
        encoded: position of each row, and its tokens or the issue; read only if the cache has no table.
        key: everything the tokens depend on; `None` keeps them in memory.
    """
    if key is not None:
        return TokenTable(view, cached_file(key, lambda stream: _write(stream, encoded)))
    stream = BytesIO()
    _write(stream, encoded)
    return TokenTable(view, np.frombuffer(stream.getbuffer(), np.uint8))


def _write(stream: BinaryIO, encoded: Iterable[tuple[int, Sample | Issue]]) -> None:
    dropped: list[Any] = []
    samples: list[tuple[int, ...]] = []
    per_token: list[str] = ["input_ids"]
    per_sample: list[str] = []
    end = 0
    for position, sample in encoded:
        if isinstance(sample, Issue):
            dropped.append([sample.code, sample.type.meaning, sample.message, astuple(sample.location)])
            continue
        arrays = [name for name in sorted(sample) if np.ndim(sample[name])]
        numbers = [name for name in sorted(sample) if not np.ndim(sample[name])]
        if not samples:
            per_token, per_sample = arrays, numbers
        elif (per_token, per_sample) != (arrays, numbers):
            raise DataError(
                "samples of different kinds", code="samples-differ", where=f"row {position}",
                expected=", ".join([*per_token, *per_sample]), hint="give all samples the same fields",
            )  # fmt: skip
        records = np.empty(len(sample["input_ids"]), _token_type(per_token))
        for name in per_token:
            records[name] = sample[name]
        end += len(records)
        stream.write(records.tobytes())
        samples.append((position, end, *(int(sample[name]) for name in per_sample)))
    stream.write(np.array(samples, _sample_type(per_sample)).tobytes())
    tail = {"per_token": per_token, "per_sample": per_sample, "samples": len(samples), "dropped": dropped}
    text = orjson.dumps(tail)
    stream.write(text + _TAIL.pack(len(text)))


class TokenTable:
    """Tokens by sample, from the file or its bytes; another process maps the file again."""

    def __init__(self, view: View, data: Path | np.ndarray):
        self._view, self._data = view, data
        memory = np.memmap(data, np.uint8, "r") if isinstance(data, Path) else data
        (size,) = _TAIL.unpack(memory[-_TAIL.size :].tobytes())
        tail = orjson.loads(memory[-_TAIL.size - size : -_TAIL.size].tobytes())
        self._per_sample: list[str] = tail["per_sample"]
        sample_type = _sample_type(self._per_sample)
        split = len(memory) - _TAIL.size - size - tail["samples"] * sample_type.itemsize
        self._tokens = memory[:split].view(_token_type(tail["per_token"]))
        self._samples = np.frombuffer(memory[split:].tobytes(), sample_type, tail["samples"])
        self.lengths: Ints = np.diff(self._samples["end"], prepend=0)
        self.dropped = [_issue(*entry) for entry in tail["dropped"]]

    def __reduce__(self) -> Any:
        return TokenTable, (self._view, self._data)

    def __len__(self) -> int:
        return len(self._samples)

    def get(self, index: int, epoch: int = 0) -> Sample:
        """The fields of one sample; the arrays are its own."""
        record = self._samples[index]
        tokens = self._tokens[record["end"] - self.lengths[index] : record["end"]]
        sample: Sample = {name: int(record[name]) for name in self._per_sample}
        for name in tokens.dtype.names or ():
            sample[name] = tokens[name].astype(np.uint8 if name == "roles" else np.int64)
        return sample

    def location(self, index: int) -> Location:
        return self._view.location(int(self._samples["position"][index]))

    def strata(self) -> Sequence[Any] | None:
        strata = self._view.strata()
        return None if strata is None else [strata[position] for position in self._samples["position"].tolist()]


def _token_type(names: Sequence[str]) -> np.dtype[Any]:
    return np.dtype([(name, _SMALL.get(name, "<i4")) for name in names])


def _sample_type(names: Sequence[str]) -> np.dtype[Any]:
    return np.dtype([(name, "<i8") for name in ("position", "end", *names)])


def _issue(code: str, meaning: str, message: str, location: Sequence[Any]) -> Issue:
    kind = _KNOWN.get(code) or IssueType(
        code, Severity.WARNING, meaning, "see `fewbit check`", "drop", ("raise", "drop")
    )
    return Issue(kind, message, Location(*location))
