# SPDX-License-Identifier: Apache-2.0
"""Stacked experts: one tensor in the model, a matrix an expert in a checkpoint.

How transformers cuts a stack for its checkpoints is asked of transformers itself: a stack of row numbers goes the way
that `save_pretrained` goes, and what comes back says which rows became which matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fewbit.exporters._checkpoint_names import in_checkpoint
from fewbit.exporters._compressed_scheme import FLOATS, MXFP4, NVFP4, PACKED, Scheme
from fewbit.modules.tensor_file import Entry
from fewbit.numerics.qtensor import QTensor


@dataclass(frozen=True)
class Rows:
    """The rows of an expert that are one matrix of a checkpoint.

    Args:
        layer: the matrix's layer there.
        expert: its number.
        start: the first row.
        stop: the row after the last.
    """

    layer: str
    expert: int
    start: int
    stop: int

    def of(self, stack: QTensor) -> QTensor:
        """These rows of a stack `[experts, out, in]`."""
        one = stack.part(self.expert, self.expert + 1)
        zero = None if one.zero_point is None else one.zero_point[0]
        matrix = QTensor(one.grid, one.shape[1:], one.block[1:], one.packed[0], one.scale[0], zero, one.super_scale)
        return matrix.part(self.start, self.stop)


def cut_stack(model: Any, name: str, shape: tuple[int, ...]) -> list[Rows] | None:
    """The matrices of a stack in a checkpoint; none if it is kept whole or cut otherwise than by rows.

    Args:
        model: the Hugging Face model.
        name: of the stack.
        shape: `[experts, out, in]`.
    """
    # Two columns stand for all: one alone is squeezed away.
    rows = torch.arange(shape[0] * shape[1]).reshape(shape[0], shape[1], 1).expand(-1, -1, 2)
    _, entries = in_checkpoint(model, [], [Entry(name, rows.dtype, tuple(rows.shape), lambda: rows)])
    found = []
    for entry in entries:
        table = entry.read()
        numbers, count = table.reshape(-1)[::2], len(table)
        start = int(numbers[0])
        expert, first = divmod(start, shape[1])
        whole = torch.equal(numbers, torch.arange(start, start + count)) and first + count <= shape[1]
        if not (whole and entry.shape == (count, 2) and entry.name.endswith(".weight")):
            return None
        found.append(Rows(entry.name.removesuffix(".weight"), expert, first, first + count))
    return found


def expert_faults(scheme: Scheme, *, vllm: bool) -> list[str]:
    """Why a reader could not take experts of a scheme."""
    arguments = scheme.weights
    integers = scheme.format == PACKED and arguments.symmetric and (not vllm or arguments.num_bits in (4, 8))
    floats = scheme.format == FLOATS and arguments.strategy != "block"
    if (integers or floats or (vllm and scheme.format in (NVFP4, MXFP4))) and scheme.inputs is None:
        return []
    bits = "4 or 8 bits" if vllm else "2 to 8 bits"
    return [f"experts as {scheme.format}: it reads symmetric integers of {bits} and fp8, their inputs in float"]
