# SPDX-License-Identifier: Apache-2.0
"""What was written, compared with the model: codes one by one, everything else bit by bit, nothing missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fewbit.errors import DataError
from fewbit.exporters._checkpoint_files import open_files
from fewbit.exporters._checkpoint_matrix import samples
from fewbit.exporters._transposed_model import Parts
from fewbit.exporters._transposed_words import unsigned_codes, unsigned_zeros
from fewbit.modules.coded import PARTS, Quantized
from fewbit.modules.inventory import named_modules
from fewbit.modules.tensor_file import same_bits
from fewbit.numerics.qtensor import QTensor

Decoded = tuple[Tensor, Tensor, Tensor]
"""Codes `[out, in]`, the code of zero `[out, groups]`, scales `[out, groups]`."""


def compare(
    parts: Parts,
    folder: Path,
    suffixes: tuple[str, ...],
    decode: Callable[[Mapping[str, Tensor], QTensor], Decoded],
    *,
    sampled: bool = False,
    copied: Sequence[str] = (),
) -> None:
    """Compare a folder with a model.

    Args:
        parts: the model.
        folder: what was written.
        suffixes: the tensors that a coded layer has in the files.
        decode: finds codes, zero points and scales in these, for a weight of this shape.
        sampled: compare one layer of each grid, and see of all else only whether it is there.
        copied: tensors in the files that the model class does not know.

    Raises:
        DataError: a tensor too many or too few, a code or a bit that differs.
    """
    coded = {f"{layer}.{suffix}" for layer in parts.coded for suffix in suffixes}
    with open_files(folder) as stored:
        faults = sorted(stored.names() ^ (coded | set(copied) | {entry.name for entry in parts.rest}))
        faults += [name for name in _own_names(parts) if name not in parts.names and name not in parts.tied]
        if not faults:
            rest = [] if sampled else parts.rest
            faults += [entry.name for entry in rest if not same_bits(entry.read(), stored[entry.name])]
            for layer, matrix in (samples(parts.coded) if sampled else parts.coded).items():
                weight = matrix.read()
                found = decode({suffix: stored[f"{layer}.{suffix}"] for suffix in suffixes}, weight)
                wanted = (unsigned_codes(weight), unsigned_zeros(weight), weight.qparams.scale)
                faults += [] if all(map(torch.equal, found, wanted)) else [f"{layer}.weight"]
    if faults:
        raise DataError(
            "what was written is not what the model holds",
            code="export-differs",
            where=", ".join(faults[:5]),
            expected="every tensor of the model: codes one by one, the others bit by bit",
            try_="was the model changed while it was exported?",
        )


def _own_names(parts: Parts) -> list[str]:
    """What the model's own state dict lists, coded weights under the names they had in float."""
    names = {
        f"{path}.{weight}_{part}": f"{path}.{weight}"
        for path, module in named_modules(parts.model)
        if isinstance(module, Quantized)
        for weight in module.coded
        for part in PARTS
    }
    return [names.get(name, name) for name in parts.model.state_dict() if name not in parts.recomputed]
