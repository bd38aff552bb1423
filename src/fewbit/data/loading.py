# SPDX-License-Identifier: Apache-2.0
"""`device_aware_data_loading`: the batches of a configuration, on the device, one epoch after the other."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from fewbit.data.collate import get_custom_data_collator
from fewbit.data.devices._choice import choose_device
from fewbit.data.loaders.loader import Loader

__all__ = ["Loader", "device_aware_data_loading"]


def device_aware_data_loading(
    dataset_config: Any,
    collator: Callable[[list[Any]], Any] | None = None,
    target_device: Any = "auto",
    *,
    split: str = "train",
    batch_size: int | None = None,
    shuffle: bool | None = None,
    drop_last: bool | None = None,
    workers: int | None = None,
    prefetch: int | None = None,
    rank: int | None = None,
    world: int | None = None,
) -> Loader:
    """The batches of a configuration, on a device.

    Args:
        dataset_config: from `generate_dataset_config`.
        collator: from `get_custom_data_collator`, or any function from a list of samples to a batch.
        target_device: `"gpu"`, `"cuda"`, `"cuda:1"`, `"mps"`, `"cpu"`, `"qaic"`, a plug-in's name, or `"auto"` for the
            best one here. `"gpu"` without one is the processor with a warning, and an error if the configuration
            says `require_device`.
        split: which part of the data.
        batch_size: the collator's if left out; another one here holds, with a warning.
        shuffle: in each epoch anew; if left out, only the split `train` is.
        drop_last: leave out a last batch with fewer samples; the configuration's if left out, else no.
        workers: how many threads or processes prepare batches; measured if nobody says.
        prefetch: how many batches they may be ahead.
        rank: which process this is; left out, what `torchrun` says.
        world: how many processes there are.

    Returns:
        An iterable with `len`, `.dataset`, `.report`, `set_epoch`, `state_dict` and `load_state_dict`.

    Raises:
        UsageError: no such device, or an argument that makes no sense.
    """
    options = dataset_config.options
    target = choose_device(target_device, required=bool(options.get("require_device")))
    whose = "configuration" if getattr(collator, "batch_size", None) is None else "collator"
    own = getattr(collator, "batch_size", None) or options.get("batch_size")
    if batch_size is not None and own not in (None, batch_size):
        warnings.warn(f"batch_size={batch_size} of the call holds, not {own} of the {whose}", stacklevel=2)
    if collator is None:
        collator = get_custom_data_collator(dataset_config)
    said = {"shuffle": shuffle, "drop_last": drop_last, "workers": workers}
    chosen = {name: options.get(name) if value is None else value for name, value in said.items()}
    return Loader(
        dataset_config.open(split),
        collator,
        target,
        batch_size=batch_size or own,
        seed=int(options.get("seed") or 0),
        shuffle=split == "train" if chosen["shuffle"] is None else bool(chosen["shuffle"]),
        drop_last=bool(chosen["drop_last"]),
        workers=chosen["workers"],
        prefetch=prefetch,
        rank=rank,
        world=world,
    )
