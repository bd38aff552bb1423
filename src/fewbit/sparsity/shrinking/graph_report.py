# SPDX-License-Identifier: Apache-2.0
"""What a record says of a graph that was shrunk, and why one cannot be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fewbit.errors import UsageError
from fewbit.record import Record
from fewbit.sparsity.shrinking.classes import Reason
from fewbit.sparsity.shrinking.graph_choice import how_many
from fewbit.sparsity.shrinking.graph_groups import Group
from fewbit.sparsity.shrinking.graph_naming import Wish, is_named


def facts(groups: Sequence[Group], gone: set[int]) -> dict[str, Any]:
    """Channels before and after by group, and those that stay with the reason."""
    return {
        "groups": [
            {
                "group": group.name,
                "layers": [node.name for node in group.layers],
                "kind": group.kind,
                "before": len(group.classes),
                "after": len(group.classes) - len(gone.intersection(group.classes)),
            }
            for group in groups
        ],
        "frozen": [
            {"group": group.name, "channels": count, **reason._asdict()}
            for group in groups
            for reason, count in _reasons(group).items()
        ],
    }


def tell(record: Record, groups: Sequence[Group], gone: set[int], settings: Wish) -> None:
    """Write a line for each group: what is left of it, or why nothing went."""
    for group in groups:
        count = len(gone.intersection(group.classes))
        if count:
            left = f"{len(group.classes) - count:,} of {len(group.classes):,} {group.kind} are left"
            record.note("shrunk", left, where=group.name, gone=count)
        else:
            record.note("dense", _why(group, settings), where=group.name)


def refuse_nothing(groups: Sequence[Group], settings: Wish) -> None:
    """Refuse a wish of which nothing can be had.

    Raises:
        UsageError: channels or heads were asked for, and none can go.
    """
    kinds = {group.kind for group in groups if how_many(group, settings)}
    absent = [kind for kind in ("channels", "heads") if getattr(settings, kind) and kind not in kinds]
    if absent:
        why = [f"{group.name}: {_why(group, settings)}" for group in groups if not how_many(group, settings)]
        raise UsageError(
            f"no {' and no '.join(absent)} can be taken out of this model",
            where="; ".join(why[:6]) or "no layer makes any",
            expected="layers whose channels a later layer reads, and nothing else needs as they are",
            try_="another share or other targets; or the stage prune",
        )


def _why(group: Group, settings: Wish) -> str:
    share = settings.heads if group.kind == "heads" else settings.channels
    if not is_named(group, settings) or not share:
        return "it is not among what is to be shrunk"
    reasons = [f"{count:,} stay at {why.op} {why.node}: {why.what}" for why, count in _reasons(group).items()]
    return "; ".join(reasons) or f"{share:.0%} of {len(group.classes):,} {group.kind} are less than one"


def _reasons(group: Group) -> Counter[Reason]:
    return Counter(group.stay.values())
