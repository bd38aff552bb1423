# SPDX-License-Identifier: Apache-2.0
"""fewbit: its pruning stage, and `sparsify`. `auto` is what it does with nothing said, `sensitivity` the same with more
zeros where answers feel them less; else an algorithm's name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import fewbit
from fewbit.sparsity.job import Job
from fewbit.sparsity.recipe import Recipe
from fewbit.sparsity.stages import prune
from fewbit.sparsity.verb import sparsify
from sparsity_worker import by_place

STRUCTURES = {"half": "unstructured", "half_w4": "unstructured", "2of4": "2:4", "2of4_w4": "2:4"}
AT_ONCE = {"cpu": 2, "cuda": 4}  # texts in an item
PICTURES = 50

_in_few_bits = by_place("language_fewbit")
split = _in_few_bits.split


def quantize(model: Any, tokens: Tensor, *, format: str, way: str, folder: str) -> Any:
    """The linear layers of a language model's blocks; embedding and head stay dense, as on every side."""
    device = model.device.type
    data = [{"input_ids": batch.to(device)} for batch in tokens.split(AT_ONCE[device])]
    narrow = {"quantize": "int4_sym", "group_size": 64} if format.endswith("_w4") else {}
    return _pruned(model, data, len(tokens), way, structure=STRUCTURES[format], **narrow)


def one_shot(model: nn.Module, pictures: Tensor, dense: list[str], *, way: str, share: float) -> nn.Module:
    """Its usual layers, which are the ones that every side is asked for."""
    made: nn.Module = _pruned(model, list(pictures.split(PICTURES)), len(pictures), way, sparsity=share)
    return made


def aware(model: nn.Module, loader: Any, test: Any, folder: Path, *, way: str, share: float, epochs: int) -> nn.Module:
    """Zeros that grow, then 8 bits, by its own loop and defaults."""
    settings = {"final": share, "epochs": epochs, "quantize": "w8a8"}
    values = {"mode": "training-aware", "use_case": "image_classification", "stages": [{"train": settings}]}
    sparsify(
        model, loader, mode="training-aware", recipe=Recipe.from_dict(values), validation=test, output=folder,
        tensorboard=False,
    )  # fmt: skip
    made: nn.Module = fewbit.load(folder / "deployment", model)
    return made


def weights(model: Any, pictures: Tensor | None = None) -> dict[str, Tensor]:
    """The weights as the model computes with them."""
    found: dict[str, Tensor] = _in_few_bits.weights(model)
    return found


def files(folder: Path) -> dict[str, Any]:
    """Bytes as they are and without the zeros, and of the files of the model that were written."""
    facts = json.loads((folder / "record.json").read_text())["facts"]
    written = facts["deployment"]["files"]
    model = sum(size for name, size in written.items() if name.startswith(("fewbit.", "model.compact")))
    return {**facts["after"]["bytes"], "file": model}


def _pruned(model: Any, data: list[Any], samples: int, way: str, **settings: Any) -> Any:
    ways = {"auto": {}, "sensitivity": {"budget": "sensitivity"}}
    values = prune.Settings(**{"sparsity": 0.5, **ways.get(way, {"algorithm": way}), **settings})
    job = Job("one-shot", None, None, dense=model, data=data, calibration=data, samples=samples)
    prune.refuse(values, model, job)
    return prune.run(model, values, job)
