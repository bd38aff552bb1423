# SPDX-License-Identifier: Apache-2.0
"""Stores added up: sums over items of several machines, or of several owners of data, which stays where it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewbit.engine.second_moments import Gathered
from fewbit.engine.store import Store
from fewbit.errors import UsageError


def merge_statistics(folders: Sequence[str | Path], output: str | Path) -> Path:
    """Add up the statistics that runs with different data kept of the same model.

    `compress_weights(model, statistics=output, …)` then settles weights for all of that data. The inputs of the first
    layers add up to what one run would have seen; those of later ones are each of a model whose layers before were
    rounded for its own data alone.

    Args:
        folders: what `compress_weights(…, statistics=folder)` kept, with the same options.
        output: a new folder.

    Returns:
        The folder.

    Raises:
        UsageError: stores that do not belong together, with every reason, or the same data twice.
        DataError: a file that is damaged.

    ```python
    fewbit.merge_statistics(["of-berlin", "of-paris"], "of-both")
    fewbit.compress_weights(model, mode="int4_sym", statistics="of-both", output="w4")
    ```
    """
    stores = [Store.open(folder) for folder in ([folders] if isinstance(folders, str | Path) else folders)]
    _refuse(stores)
    first = stores[0]
    jobs = sorted(job for store in stores for job in store.jobs)
    made = Store.create(output, first.model, sum(store.items for store in stores), first.facts, jobs)
    for layers in dict.fromkeys(layers for store in stores for layers in store):
        # Tensors of a store are mapped from its files, which are not ours to change.
        parts = [store.get(layers) for store in stores if layers in store.stages]
        total = Gathered.of({name: x.clone() for name, x in parts[0].tensors().items()})
        for other in parts[1:]:
            total.absorb(other)
        made.put(layers, total)
    made.close()
    return made.folder


def describe_statistics(folder: str | Path) -> dict[str, Any]:
    """What is in a store, as JSON values: the digest of its model, items, tokens, stages, bytes."""
    store = Store.open(folder)
    return {
        "folder": str(store.folder),
        "model": store.model,
        "jobs": len(store.jobs),
        "items": store.items,
        "tokens": next((stage["tokens"] for stage in store.stages.values()), 0),  # the first one sees them all
        "stages": len(store.stages),
        "layers": sum(map(len, store.stages)),
        "bytes": sum(stage["bytes"] for stage in store.stages.values()),
    }


def _refuse(stores: Sequence[Store]) -> None:
    if len(stores) < 2:
        raise UsageError("nothing to merge", where="folders", expected="two stores at least")
    first, faults = stores[0], []
    for other in stores[1:]:
        reasons = {
            "of another model": other.model != first.model,
            "with layers that were rounded differently": other.facts != first.facts,
        }
        faults += [f"{other.folder} is {reason}" for reason, found in reasons.items() if found]
    seen: dict[str, Path] = {}
    for store in stores:
        for job in store.jobs:
            if job in seen:
                faults.append(f"{store.folder} has the data of {seen[job]}")
            seen.setdefault(job, store.folder)
    if faults:
        raise UsageError(
            f"the stores do not add up: {'; '.join(faults)}",
            where=first.folder,
            expected="stores of different data, made with the same model and the same options",
        )
