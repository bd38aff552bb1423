# SPDX-License-Identifier: Apache-2.0
"""What ONNX Runtime computes, compared with what the file says.

The result is evaluated as a user runs it, with graph optimizations, and as it is written, without. The runtime may
quantize float layers again, and 8-bit sums saturate on some processors.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from torch import Tensor

from fewbit.engine.measuring import Reference, worst_layers
from fewbit.engine.sqnr import sqnr
from fewbit.record import Record

_ITEMS = 8  # items that are evaluated both ways; without optimizations a model is slow
_DIFFERENCE = 1.0  # dB
_FINE = 60.0  # dB: above it no difference matters
_NAMED = 4


def check_runtime(result: Any, reference: Reference, run: Sequence[list[Tensor]], record: Record) -> None:
    """Note in the record how far the runtime's outputs are from what the file says.

    Args:
        result: view of the quantized graph.
        reference: outputs of the float model on held-out samples.
        run: outputs of the quantized model with the runtime's graph optimizations.
        record: takes the figures, and a warning with the cause if they differ by more than 1 dB.
    """
    items, wanted = reference.items[:_ITEMS], reference.outputs[:_ITEMS]
    try:
        outputs = result.answers_as_written(items)
        written = [reference.compared(each, chosen) for each, chosen in zip(outputs, reference.chosen)]
    except Exception as error:  # the runtime's errors have no common class but this
        reason = f"ONNX Runtime does not run the result without graph optimizations: {str(error)[:300]}"
        record.note("runtime-not-checked", reason)
        return
    as_written, as_run = (sqnr(wanted, found) for found in (written, run[:_ITEMS]))
    if as_written is None:
        record.note("runtime-not-checked", "the outputs have no finite numbers to compare")
        return
    lost = inf if as_run is None else as_written - as_run
    record.facts["runtime_check"] = {
        "sqnr_as_written": as_written,
        "sqnr_as_run": as_run,
        "difference_db": None if as_run is None else lost,
        "items": len(items),
    }
    if lost <= _DIFFERENCE or (as_run is not None and as_run >= _FINE):
        return
    causes, layers = _causes(result, record)
    runs = "not finite" if as_run is None else f"{as_run:.1f} dB"
    record.note(
        "runtime-differs",
        f"ONNX Runtime does not compute what the file says: SQNR {runs} as it runs here, {as_written:.1f} dB as "
        f"written (without graph optimizations), on {len(items)} item{'s' if len(items) > 1 else ''}; cause: {causes}",
        requantized=layers,
    )


def _causes(result: Any, record: Record) -> tuple[str, list[str]]:
    """Why the runtime's outputs differ, in words, and the layers that it quantized again."""
    causes = []
    layers = result.requantized()
    if layers:
        names = [name for name, _ in layers]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        told = f"{len(names)} float layer{'s' if len(names) > 1 else ''}"
        operators = ", ".join(dict.fromkeys(operator for _, operator in layers))
        causes.append(f"the runtime quantizes {told} again, as {operators} ({', '.join(names[:_NAMED])}{more})")
    if result.saturates():
        ignore = " ".join(f"--ignore {name}" for name in worst_layers(record)) or "--ignore the worst layers"
        causes.append(
            f"saturating u8·s8 sums on this processor (no VNNI); try {ignore}, a weight-only preset (w8a16), or run it "
            "on a processor with VNNI"
        )
    return "; ".join(causes) or "not known; another version or provider of the runtime may differ", [
        n for n, _ in layers
    ]
