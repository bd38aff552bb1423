# SPDX-License-Identifier: Apache-2.0
"""What a record says of a graph that was shrunk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fewbit.record import Record
from fewbit.sparsity.shrinking.graph_classes import Reason
from fewbit.sparsity.shrinking.graph_groups import Group
from fewbit.sparsity.shrinking.graph_naming import Wish, is_named


def facts(groups: Sequence[Group], gone: set[int]) -> dict[str, Any]:
    """Channels before and after by group, and those that stay with the reason."""
    return {
        "groups": [
            {
                "layers": [node.name for node in group.layers],
                "kind": group.kind,
                "before": len(group.classes),
                "after": len(group.classes) - len(gone.intersection(group.classes)),
            }
            for group in groups
        ],
        "frozen": [
            {"layers": [node.name for node in group.layers], "channels": count, **reason._asdict()}
            for group in groups
            for reason, count in _reasons(group).items()
        ],
    }


def tell(record: Record, groups: Sequence[Group], gone: set[int], settings: Wish) -> None:
    """Write a line for each group of a record: what went, or why nothing did."""
    for group in groups:
        count = len(gone.intersection(group.classes))
        share = settings.heads if group.kind == "heads" else settings.channels
        if count:
            record.note("shrunk", f"{count} of {len(group.classes)} {group.kind} taken out", where=group.name)
        elif not is_named(group, settings):
            record.note("not-shrunk", "the settings leave it alone", where=group.name)
        elif share:
            why = "; ".join(f"{n} stay at {r.op} {r.node}: {r.what}" for r, n in _reasons(group).items())
            record.note("not-shrunk", why or f"{share:.0%} of {len(group.classes)} is none", where=group.name)


def _reasons(group: Group) -> Counter[Reason]:
    return Counter(group.stay.values())
