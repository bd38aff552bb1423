# SPDX-License-Identifier: Apache-2.0
"""The plan as text: layers that become the same are one line."""

from __future__ import annotations

import re
from typing import Any


def render(plan: dict[str, Any]) -> str:
    """A plan, as `Plan.to_dict` gives it, for people.

    Layers whose names differ only in numbers, and which become the same, stand on one line: `layers.{0-23}.fc1`.
    """
    rows: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for layer in plan["layers"]:
        name = layer["layer"] + (f".{layer['tensor']}" if layer.get("tensor") not in (None, "weight") else "")
        if "activation" in layer:
            name += f":{layer['activation']}"
        to = f"float: {layer['float']}" if "float" in layer else layer.get("weight") or layer["scheme"]
        reads = layer.get("input") or ""
        rows.setdefault((re.sub(r"\d+", "#", name), to, reads), []).append(layer | {"name": name})
    lines = []
    width = max((len(_names(group)) for group in rows.values()), default=0)
    for (_, to, reads), group in rows.items():
        before, after = (sum(layer.get(key, 0) for layer in group) for key in ("bytes_before", "bytes_after"))
        size = f"{_size(before)} → {_size(after)}" if before != after else _size(before) if before else ""
        what = f"{to} · input {reads}" if reads else to
        lines.append(f"{_names(group):<{min(width, 60)}}  ×{len(group):<4} {what:<60} {size}")
    lines += [f"note: {note['where']}: {note['what']}" for note in plan["notes"]]
    before, after = plan["bytes_before"], plan["bytes_after"]
    ratio = f" ({before / after:.2f}× smaller)" if after not in (0, before) else ""
    lines.append(f"parameters: {_size(before)} → {_size(after)}{ratio}; peak memory about {_size(plan['peak_bytes'])}")
    if "solve_seconds" in plan:
        seconds = plan["solve_seconds"]
        about = (
            f"about {seconds:.0f} s" if seconds >= 10 else f"about {seconds:.1f} s" if seconds >= 0.1 else "under 0.1 s"
        )
        lines.append(f"time: {about} for the weights, plus one forward pass over the calibration data, if any")
    if plan.get("upper_bound"):
        doubtful = "layers that save no time, or whose error is not worth it, stay in float"
        lines.append(f"an upper bound, for {plan['target']}: with data, {doubtful}")
    lines.append(
        "calibration data: " + ("needed" if plan["needs_data"] else "not needed; if given, it weighs the errors")
    )
    return "\n".join(lines)


def _names(group: list[dict[str, Any]]) -> str:
    """The names of a group as one: numbers that vary become a range.

    >>> _names([{"name": "a.0.b"}, {"name": "a.1.b"}, {"name": "a.2.b"}])
    'a.{0-2}.b'
    """
    parts = [re.split(r"(\d+)", layer["name"]) for layer in group]
    merged = []
    for pieces in zip(*parts):
        values = sorted({int(p) for p in pieces}) if pieces[0].isdigit() else []
        merged.append(pieces[0] if len(set(pieces)) == 1 else f"{{{values[0]}-{values[-1]}}}")
    return "".join(merged)


def _size(count: int) -> str:
    """Bytes in a unit one can read.

    >>> _size(1_500_000)
    '1.5 MB'
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} B"
