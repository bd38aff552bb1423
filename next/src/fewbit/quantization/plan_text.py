# SPDX-License-Identifier: Apache-2.0
"""A plan for people: a table of layers that share a decision, sizes, estimates; the same as HTML for notebooks."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fewbit.errors import escape
from fewbit.record.screen import megabytes, ratio

if TYPE_CHECKING:
    from fewbit.quantization.plan import Plan

_MOST_NAME, _MOST_LINE = 52, 90


def plan_text(plan: Plan, *, every_layer: bool = False) -> str:
    """The screen of `fewbit plan`.

    Args:
        plan: with facts.
        every_layer: one line per layer instead of one per group of similar names.
    """
    facts = plan.facts
    lines = [f"{facts.get('model', 'model')}: {plan.preset.name}, {plan.preset.meaning}"]
    lines[0] += f", for {facts['target']}" if facts.get("target") else ""
    rows = [entry.row() for entry in plan.layers]
    count = sum(row["quantized"] for row in rows)
    lines += ["", f"  layers    {len(rows)}: {count} {plan.preset.name}, {len(rows) - count} float"]
    lines += [f"    {line}" for line in _table(rows if every_layer else grouped(rows))]
    if facts.get("size"):
        before, after = facts["size"]["original"], facts["size"]["result"]
        change = ratio(before, after, "smaller", "larger")
        lines.append(f"  size      {megabytes(before)} -> about {megabytes(after)}, {change}")
    labels = ("algorithm", "data", "memory", "time", "next")
    lines += [f"  {label:<10}{facts[label]}" for label in labels if facts.get(label)]
    return "\n".join(escape(line) if line else line for line in lines)


def plan_html(plan: Plan) -> str:
    """A small table for notebooks."""
    body = "".join(
        f"<tr><td>{html.escape(escape(row['name']))}</td><td>{html.escape(row['type'])}</td>"
        f"<td>{html.escape(decision(row))}</td><td>{html.escape(row['reason'])}</td></tr>"
        for row in grouped([entry.row() for entry in plan.layers])
    )
    head = "<tr><th>layer</th><th>type</th><th>becomes</th><th>reason</th></tr>"
    return f"<p>{html.escape(repr(plan))}</p><table>{head}{body}</table>"


def grouped(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for layers whose names differ in their numbers only and that share type, decision and reason.

    >>> rows = [{"name": f"layers.{i}.up", "type": "Linear", "quantized": True, "reason": ""} for i in range(30)]
    >>> [(row["name"], row["count"]) for row in grouped(rows)]
    [('layers.{0-29}.up', 30)]
    """
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        pattern = re.sub(r"\d+", "#", row["name"])
        groups.setdefault((pattern, row["type"], decision(row), row["reason"]), []).append(row)
    return [{**members[0], "name": _common_name(members), "count": len(members)} for members in groups.values()]


def _common_name(members: Sequence[Mapping[str, Any]]) -> str:
    """The numbers that differ, as a range or a list."""
    if len(members) == 1:
        return str(members[0]["name"])
    parts = [re.split(r"(\d+)", member["name"]) for member in members]
    name = ""
    for column in zip(*parts):
        values = list(dict.fromkeys(column))
        if len(values) == 1:
            name += values[0]
        else:
            numbers = sorted(map(int, values))
            is_range = numbers == list(range(numbers[0], numbers[-1] + 1))
            name += f"{{{numbers[0]}-{numbers[-1]}}}" if is_range else f"{{{numbers[0]}..{numbers[-1]}}}"
    return name


def decision(row: Mapping[str, Any]) -> str:
    """`int4 per_group 64`, `int8 per_channel, input int8`, or `float`."""
    if not row["quantized"]:
        return "float"
    weight = f"{row['weight']} {row['group_size']}" if row.get("group_size") else row.get("weight", "float")
    return weight + (f", input {row['input']}" if row.get("input") else "")


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = [row["name"] if len(row["name"]) <= _MOST_NAME else f"…{row['name'][1 - _MOST_NAME :]}" for row in rows]
    width = max(map(len, names), default=0)
    kinds = max((len(row["type"]) for row in rows), default=0)
    lines = []
    for name, row in zip(names, rows):
        times = f" x{row['count']}" if row.get("count", 1) > 1 else ""
        line = f"{name:<{width}}  {row['type']:<{kinds}}{times:<6}  {decision(row)}"
        reason = f"({row['reason']})" if row["reason"] else ""
        if reason and len(line) + len(reason) > _MOST_LINE:
            lines += [line, f"  {reason}"]
        else:
            lines.append(f"{line}  {reason}".rstrip())
    return lines
