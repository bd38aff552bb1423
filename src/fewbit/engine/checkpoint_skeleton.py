# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face model without its weights: every tensor is one number that stands for all, in the right shape.

Such a model has the names, ties and layers of the real one, so that whatever plans for a model or writes one can be
asked what it would do; nothing it could say of values is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import torch
from torch import Tensor, nn

from fewbit.engine.plan import WeightPlan
from fewbit.errors import DataError, UsageError
from fewbit.model.view import ModelView
from fewbit.modules.checkpoint_files import Place
from fewbit.modules.coded import Coded
from fewbit.modules.description import parts_of
from fewbit.modules.huggingface import empty_model
from fewbit.numerics.qtensor import QTensor


def stand_in_model(folder: Path, tensors: Mapping[str, Place]) -> Any:
    """The model of a folder, in the dtype it would be opened in.

    Raises:
        UsageError: a model that is quantized already, or that transformers has no class for.
        DataError: a configuration that cannot be read.
    """
    config = _config(folder)
    if config.get("quantization_config"):
        raise UsageError("the model is quantized already", where=folder, expected="a float model")
    names = config.get("architectures") or [None]
    model: Any = empty_model(folder, {"class": names[0]}).eval()
    model.tie_weights()
    model.name_or_path = str(folder)
    dtype = model.config.dtype or next(place.dtype for place in tensors.values() if place.dtype.is_floating_point)
    made: dict[int, nn.Parameter] = {}
    held: list[nn.Parameter] = []  # for as long as their ids count
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in made:
                    kind = dtype if parameter.is_floating_point() else parameter.dtype
                    made[id(parameter)] = nn.Parameter(_alike(parameter, kind), requires_grad=False)
                    held.append(parameter)
                module._parameters[name] = made[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = _alike(buffer, buffer.dtype)
    return model


def put_stand_ins(view: ModelView, weights: list[WeightPlan], scales: Mapping[str, float]) -> None:
    """Give a model of stand-ins codes that stand for those of a plan.

    Args:
        view: of the model, which is changed.
        weights: of the plan.
        scales: for some weights, the scale that stands for theirs. By default it has as many digits as its type, so
            that it fits where any scale of that type would.
    """
    for planned in weights:
        point, grid = planned.point, planned.grid
        coded = Coded(grid, point.shape, planned.block, tuple(range(len(point.shape))), view.read(point).dtype)
        parts = {part: _alike(tensor, tensor.dtype) for part, tensor in parts_of(coded).items()}
        kind = parts["scale"].dtype
        digits = 1 + torch.finfo(kind).eps if kind.is_floating_point else 1
        one = torch.tensor(scales.get(point.name, digits), dtype=kind)
        parts["scale"] = one.expand(parts["scale"].shape)
        view.quantize(point, QTensor.from_tensors(grid, point.shape, planned.block, parts))


def _alike(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor of the same shape that takes no memory."""
    return torch.zeros((), dtype=dtype).expand(tensor.shape)


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise UsageError(f"no config.json in {str(folder)!r}", where=folder, expected="a Hugging Face folder")
    try:
        return dict(orjson.loads(path.read_bytes()))
    except (orjson.JSONDecodeError, TypeError, ValueError) as error:
        raise DataError(f"config.json is not a JSON object: {error}", code="model-config", where=path) from error
