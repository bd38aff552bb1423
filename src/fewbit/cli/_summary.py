# SPDX-License-Identifier: Apache-2.0
"""The record of a run in a few lines: what holds for many layers is said once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.filesize import decimal

from fewbit.record import Record

_COUNTED = ("quantized", "activation", "kernel")
_NAMED = 3
"""Of so many places the names are printed; the record has them all."""


def lines(record: Record) -> Iterator[str]:
    """What became of a model, for people.

    >>> record = Record("quantize", facts={"bytes_before": 8000, "bytes_after": 2000})
    >>> record.note("quantized", "global_quant_config", where="0.weight")
    >>> for name in "abcde":
    ...     record.note("float", "it is excluded", where=name)
    >>> print("\\n".join(lines(record)))
    1 weights quantized, 5 left in float: 8.0 kB → 2.0 kB (4.00× smaller)
      float: it is excluded (a, b, c and 2 more)
    """
    counts = Counter(line["what"] for line in record.lines)
    before, after = record.facts["bytes_before"], record.facts["bytes_after"]
    yield (
        f"{counts['quantized']} weights quantized, {counts['float']} left in float: "
        f"{decimal(before)} → {decimal(after)} ({before / max(after, 1):.2f}× smaller)"
    )
    if counts["activation"]:
        yield f"  {counts['activation']} activations quantized"
    kernels = Counter(line["kernel"] for line in record.lines if line["what"] == "kernel")
    for name, count in kernels.items():
        yield f"  {count} layers run on this machine by {name or 'their own forward'}"
    places: dict[tuple[str, str], list[str]] = {}
    for line in record.lines:
        if line["what"] not in _COUNTED:
            places.setdefault((line["what"], line["reason"]), []).extend([line["where"]] if line["where"] else [])
    for (what, reason), where in places.items():
        yield f"  {what}: {reason}{_named(where)}"


def _named(where: list[str]) -> str:
    if not where:
        return ""
    more = f" and {len(where) - _NAMED} more" if len(where) > _NAMED else ""
    return f" ({', '.join(where[:_NAMED])}{more})"
