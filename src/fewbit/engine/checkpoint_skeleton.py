# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face model without its weights: first empty, to plan for; then of stand-ins, to be laid out.

An empty model has names, ties and layers, and shapes flow through it. Stand-ins are tensors of the right shape in which
one number stands for all: whatever writes a model can be asked what it would write. What they say of values is not so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import torch
from torch import Tensor, nn

from fewbit.backends.eager.telling import tell_stacks
from fewbit.backends.eager.view import EagerView
from fewbit.engine.checkpoint_names import NeedsModel
from fewbit.engine.plan import WeightPlan
from fewbit.errors import DataError, UsageError
from fewbit.exporters._compressed_experts import cut_stack
from fewbit.model.view import ModelView
from fewbit.modules.checkpoint_files import Place
from fewbit.modules.coded import Coded
from fewbit.modules.description import parts_of
from fewbit.modules.huggingface import empty_model
from fewbit.numerics.qtensor import QTensor

_SMALL = 2.0**-40
"""What bfloat16 and float32 have, and float16 has not."""


def empty_view(folder: Path, tensors: Mapping[str, Place]) -> ModelView:
    """A view of the model of a folder, on the meta device, in the dtype it would be opened in.

    Raises:
        UsageError: a model that is quantized already, or that transformers has no class for.
        NeedsModel: weights whose use only a run shows.
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
    _replace(model, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, buffers=False)
    view = EagerView(model)
    # What transformers cuts into matrices for its checkpoints are the weights of linear layers, `[out, in]`.
    strange = tell_stacks(view, lambda name, shape: len(shape) == 3 and cut_stack(model, name, shape) is not None)
    if strange:
        raise NeedsModel(
            f"how {len(strange)} tensors are used shows only when the model runs: {', '.join(strange[:4])}",
            where=folder,
            expected="linear layers, and experts that a checkpoint has as matrices",
        )
    return view


def put_stand_ins(view: ModelView, weights: list[WeightPlan], narrow: Mapping[str, bool]) -> None:
    """Give an empty model stand-ins, codes where a plan has them.

    Args:
        view: of the model, which is changed.
        weights: of the plan.
        narrow: for some weights, whether every dtype holds their scales, or none but float32. By default a scale has as
            many digits as its type, so that it fits where any of the usual size would.
    """
    _replace(view.native(), _stand_in, buffers=True)
    for planned in weights:
        point, grid = planned.point, planned.grid
        coded = Coded(grid, point.shape, planned.block, tuple(range(len(point.shape))), view.read(point).dtype)
        parts = {part: _stand_in(tensor) for part, tensor in parts_of(coded).items()}
        kind = parts["scale"].dtype
        digits = 1 + torch.finfo(kind).eps if kind.is_floating_point else 1
        scale = {None: digits, True: 1.0, False: digits * _SMALL}[narrow.get(point.name)]
        parts["scale"] = torch.tensor(scale, dtype=kind).expand(parts["scale"].shape)
        view.quantize(point, QTensor.from_tensors(grid, point.shape, planned.block, parts))


def _stand_in(tensor: Tensor) -> Tensor:
    """A tensor of the same dtype and shape that takes no memory."""
    return torch.zeros((), dtype=tensor.dtype).expand(tensor.shape) if tensor.is_meta else tensor


def _replace(model: nn.Module, change: Callable[[Tensor], Tensor], *, buffers: bool) -> None:
    """Change every parameter once, however many have it, and buffers if asked for."""
    before = list(model.parameters())  # held for as long as their ids count
    made = {id(each): nn.Parameter(change(each.detach()), requires_grad=False) for each in before}
    for module in model.modules():
        owned = module._parameters.items()
        module._parameters |= {name: made[id(each)] for name, each in owned if each is not None}
        if buffers:
            module._buffers |= {name: change(each) for name, each in module._buffers.items() if each is not None}


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise UsageError(f"no config.json in {str(folder)!r}", where=folder, expected="a Hugging Face folder")
    try:
        return dict(orjson.loads(path.read_bytes()))
    except (orjson.JSONDecodeError, TypeError, ValueError) as error:
        raise DataError(f"config.json is not a JSON object: {error}", code="model-config", where=path) from error
