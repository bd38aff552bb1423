# SPDX-License-Identifier: Apache-2.0
"""What transformers calls a model's tensors in a checkpoint: it renames and merges some while loading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fewbit.modules.tensor_file import Entry


def in_checkpoint(
    model: Any, later: Sequence[Entry], plain: Sequence[Entry], *, empty: bool = False
) -> tuple[dict[str, str | None], list[Entry]]:
    """Entries as a checkpoint has them, by the way back that `save_pretrained` takes.

    Args:
        model: the Hugging Face model.
        later: tensors that are only made when they are written; they can be renamed, not cut.
        plain: tensors that are there.
        empty: only names, dtypes and shapes of the plain ones are wanted: none is read, what was cut has no values.

    Returns:
        The new name of each tensor, `None` for one that was cut or merged; and every entry under its new name, by name.
    """
    held = {entry.name: _stand_in(entry) for entry in later}
    held |= {entry.name: _stand_in(entry) if empty else entry.read().detach() for entry in plain}
    own = {id(held[entry.name]): entry for entry in (*later, *plain)}
    names: dict[str, str | None] = dict.fromkeys(held)
    entries = []
    for name, tensor in sorted(_reverted(model, held).items(), key=_by_name):
        entry = own.get(id(tensor))
        if entry is not None:
            names[entry.name] = name
            entries.append(replace(entry, name=name))
        elif empty or not tensor.is_meta:
            entries.append(Entry(name, tensor.dtype, tuple(tensor.shape), partial(_itself, tensor)))
    return names, entries


def _reverted(model: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # before transformers 5 modules had the names of their checkpoints
        return tensors
    found: dict[str, Tensor] = revert_weight_conversion(model, tensors)
    return found


def _stand_in(entry: Entry) -> Tensor:
    return torch.empty(entry.shape, dtype=entry.dtype, device="meta")


def _by_name(item: tuple[str, Tensor]) -> str:
    return item[0]


def _itself(tensor: Tensor) -> Tensor:
    return tensor
