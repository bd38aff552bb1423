# SPDX-License-Identifier: Apache-2.0
"""A quantized module tree made again: a float model of the same build, a description, and the tensors.

The float model's own values are not used; it may as well be on the meta device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.description import Description, parts_of
from fewbit.modules.fast_paths import close_fast_paths
from fewbit.modules.kv_cache import CacheCodec, KeyValueCodecs, attach_cache
from fewbit.modules.misfit import cache_place, is_quantizer, refuse_misfit
from fewbit.modules.quantized import Coded, make_quantized, set_weight
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor


@dataclass(frozen=True)
class Contents:
    """Everything a file holds of a model.

    Args:
        description: what is quantized, and how.
        tensors: every tensor under each of its names; one object where names share one.
        kinds: what each of them is, as an inventory says.
    """

    description: Description
    tensors: Mapping[str, Tensor]
    kinds: Mapping[str, str]


def rebuild(model: nn.Module, contents: Contents) -> nn.Module:
    """Turn a float model, in place, into the quantized one.

    Raises:
        DataError: model and contents do not fit, with every fault at once.
    """
    description, tensors = contents.description, contents.tensors
    refuse_misfit(model, description, tensors, contents.kinds)
    modules = dict(model.named_modules(remove_duplicate=False))
    for path, layer in description.layers.items():
        make_quantized(modules[path])
        for name, coded in layer.weights.items():
            _put_weight(modules[path], path, name, coded, tensors)
    parameters: dict[int, nn.Parameter] = {}
    for name, tensor in tensors.items():
        path, _, own = name.rpartition(".")
        if contents.kinds[name] != "code" and not is_quantizer(model, path, description):
            _put_tensor(modules[path], own, tensor, contents.kinds[name], parameters)
    quantizers = {path: _quantizer(path, description, tensors) for path in description.quantizers}
    for path, quantizer in quantizers.items():
        if cache_place(path) is None:
            parent, _, own = path.rpartition(".")
            setattr(modules[parent], own, quantizer)
    _attach_caches(model, quantizers)
    close_fast_paths(model)
    return model


def _put_weight(module: nn.Module, path: str, name: str, coded: Coded, tensors: Mapping[str, Tensor]) -> None:
    prefix = f"{path}.{name}_".lstrip(".")
    parts = {part: tensors[prefix + part] for part in parts_of(coded)}
    qtensor = QTensor.from_tensors(coded.grid, coded.shape, coded.block, parts)
    # The float model may be in another dtype; the codes stand for values of the dtype they were made from.
    module._parameters[name] = nn.Parameter(torch.empty(coded.own_shape, dtype=coded.dtype, device="meta"), False)
    set_weight(module, name, qtensor, coded.axes, coded.groups)


def _put_tensor(module: nn.Module, name: str, tensor: Tensor, kind: str, made: dict[int, nn.Parameter]) -> None:
    if kind == "parameter":
        before = module._parameters[name]
        trains = before is not None and before.requires_grad and tensor.is_floating_point()
        # By setattr: a recurrent layer keeps a list of its parameters beside them, and notices.
        setattr(module, name, made.setdefault(id(tensor), nn.Parameter(tensor, trains)))
    elif name in module._buffers:
        module._buffers[name] = tensor
    elif kind == "buffer":
        module.register_buffer(name, tensor, persistent=False)
    else:
        vars(module)[name] = tensor


def _quantizer(path: str, description: Description, tensors: Mapping[str, Tensor]) -> ActivationQuantizer:
    how = description.quantizers[path]
    if how.dynamic:
        return ActivationQuantizer(how.grid, how.features)
    zero, super_scale = (tensors.get(f"{path}.{part}") for part in ("zero_point", "super_scale"))
    fixed = QParams(how.grid, (), tensors[f"{path}.scale"], zero, super_scale)
    return ActivationQuantizer(how.grid, how.features, fixed)


def _attach_caches(model: nn.Module, quantizers: Mapping[str, ActivationQuantizer]) -> None:
    found: dict[str, dict[int, dict[str, nn.Module]]] = {}
    for path, quantizer in quantizers.items():
        place = cache_place(path)
        if place is not None:
            owner, index, side = place
            found.setdefault(owner, {}).setdefault(index, {})[side] = CacheCodec(quantizer)
    for owner, layers in found.items():
        pairs = {index: KeyValueCodecs(sides.get("key"), sides.get("value")) for index, sides in layers.items()}
        attach_cache(model.get_submodule(owner), pairs)
