# SPDX-License-Identifier: Apache-2.0
"""Layers by their share of the damage, as lines of a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from fewbit.engine.damage import Damage
from fewbit.engine.plan import describe
from fewbit.modules.quantized import Quantized
from fewbit.record import Record

MEANING = (
    "local_error: what this layer alone changes in its output, given the original's input, as a part of that output's "
    "energy; share: its part of the sum of all local errors; arriving_error: what is off in its input when the whole "
    "compressed model runs. The share says where rounding hurts most, not how much of the final difference is due to it"
)


def note_layers(damage: Damage, record: Record, made: Record | None) -> None:
    """Write what was found at each layer into a record, the worst first.

    Args:
        damage: which looked on.
        record: of the comparison.
        made: of the run that made the compressed model, where it is known; says by which algorithm.
    """
    changed = [layer for layer in damage.layers if layer.changed]
    measured = {layer.name: layer.local.value or 0.0 for layer in changed if layer.fault is None}
    total = sum(measured.values())
    known = _made(made)
    stream = [{"layer": each.name, "error": each.arriving.value} for each in damage.layers if each.arriving.energy]
    record.facts["layers"] = {
        "items": damage.items, "changed": len(changed), "local_error": total, "meaning": MEANING, "stream": stream,
    }  # fmt: skip
    by_name = {layer.name: layer for layer in changed}
    for name in sorted(measured, key=lambda each: -measured[each]):
        layer, local = by_name[name], measured[name]
        reason = f"{local:.2g} of its output's energy changes by its own rounding"
        record.note(
            "layer", reason, where=name, share=local / total if total else 0.0, local_error=local,
            input_rounding=layer.rounding.value, arriving_error=layer.arriving.value, order=layer.order,
            scheme=_scheme(layer.theirs, known.get(name, {})), algorithm=known.get(name, {}).get("algorithm"),
        )  # fmt: skip
    for layer in changed:
        if layer.fault is not None:
            record.note("layer-not-measured", layer.fault, where=layer.name)
    for name in damage.unreached:
        record.note("layer-not-measured", "nothing called it: no item reached it, or its owner reads it", where=name)


def _made(record: Record | None) -> dict[str, Mapping[str, Any]]:
    """What a run planned for each layer's weight; of its file no more is believed than what is there."""
    rows = None if record is None else record.facts.get("layers")
    found = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    there = [row for row in found if "layer" in row and "weight" in row]
    tied = {str(user).rpartition(".")[0]: row for row in there for user in row.get("tied") or ()}
    return tied | {str(row["layer"]): row for row in there}


def _scheme(layer: nn.Module, made: Mapping[str, Any]) -> str | None:
    """What a layer's weights became, and what it makes of its input: of its codes, or as it was planned."""
    if not isinstance(layer, Quantized):
        words, reads = [made.get("weight")], made.get("input")
    else:
        words, given = (
            list(dict.fromkeys(describe(coded.grid) for coded in layer.coded.values())),
            layer.input_quantizer,
        )
        reads = None if given is None else describe(given.grid, dynamic=given.dynamic)
    return " · ".join(str(word) for word in (*words, None if reads is None else f"input {reads}") if word) or None
