# SPDX-License-Identifier: Apache-2.0
"""What a process of part `language` of bench/sparsity.py does: that of bench/language.py, and zeros are counted."""

from __future__ import annotations

from typing import Any

from sparsity_worker import by_place, zeros_of

_worker = by_place("language_worker")


def sparsify(**question: Any) -> dict[str, Any]:
    """Seconds of a side's whole job on a loaded model; its weights are left in a file."""
    answer: dict[str, Any] = _worker.quantize(**question, bench="sparsity")
    return answer


def judge(share: float, structure: str, weights: str | None, **question: Any) -> dict[str, Any]:
    """Perplexities of the plain model with some weights in place of its own, refused if zeros are missing."""
    counted: dict[str, Any] = {}
    if weights is not None:
        found = _worker.load_file(weights)
        model = _worker.load(question["folder"], "cpu")
        layers = {f"{name}.weight" for name, _ in _worker.blocks_linears(model)}
        counted = zeros_of({name: value for name, value in found.items() if name in layers}, share, structure)
    return counted | _worker.judge(weights=weights, **question)
