# SPDX-License-Identifier: Apache-2.0
"""A language model from the tensors of any checkpoint: transformers' own class, quantized linear layers packed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fewbit.backends.torch.block_model import _computed_buffer
from fewbit.backends.torch.layers import set_weight
from fewbit.backends.torch.module_model import ModuleModel
from fewbit.checkpoints._base import StoredTensors
from fewbit.errors import ModelError, require

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def load_checkpoint(weights: StoredTensors, *, device: str = "cpu", freeze: bool = True) -> nn.Module:
    """Build the model that the configuration describes and fill it, one tensor at a time.

    Args:
        weights: of the checkpoint.
        device: where the model computes.
        freeze: choose the fastest kernel for each quantized layer.

    Raises:
        ModelError: tensors are missing, or are not the model's.
    """
    require("transformers", extra="hf", purpose="Hugging Face models")
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    values = weights.config()
    config = CONFIG_MAPPING[values["model_type"]].from_dict(dict(values))
    dtype = _DTYPES.get(str(values.get("dtype", values.get("torch_dtype", ""))).removeprefix("torch."), torch.float32)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False, dtype=dtype).eval()
    left = set(weights)
    for name in list(weights):
        owner_name, _, own = name.rpartition(".")
        try:
            owner = model.get_submodule(owner_name)
        except AttributeError:
            continue
        if own in owner._parameters or own in owner._buffers:
            left.discard(name)
            _fill(owner, own, name, weights, dtype)
    model.tie_weights()
    for owner in model.modules():
        for own in owner._non_persistent_buffers_set:
            buffer = owner._buffers.get(own)
            if buffer is not None and buffer.is_meta:
                owner._buffers[own] = _computed_buffer(owner, own)
    missing = [name for name, value in [*model.named_parameters(), *model.named_buffers()] if value.is_meta]
    if missing or left:
        problem = (
            f"weights are missing: {', '.join(missing[:3])}"
            if missing
            else f"no place for {', '.join(sorted(left)[:3])}"
        )
        raise ModelError(
            problem, code="weights-missing" if missing else "weights-unknown", where=str(weights.path),
            expected="the tensors of the model that the configuration describes", hint="the complete checkpoint",
        )  # fmt: skip
    model = model.to(device)
    if freeze:
        ModuleModel(model).freeze()
    return model  # type: ignore[no-any-return]


def _fill(owner: nn.Module, own: str, name: str, weights: StoredTensors, dtype: torch.dtype) -> None:
    """Give a module one tensor: packed if it is a quantized weight of a linear layer, else as floats."""
    if isinstance(owner, nn.Linear) and own == "weight" and weights.quantized(name):
        tensor = weights.qtensor(name)
        if tensor is not None:
            owner._parameters[own] = nn.Parameter(torch.empty(tensor.shape, dtype=dtype), requires_grad=False)
            set_weight(owner, own, tensor)
            return
    value: Tensor = weights.read(name)
    value = value.to(dtype) if value.is_floating_point() else value
    if own in owner._parameters:
        owner._parameters[own] = nn.Parameter(value, requires_grad=False)
    else:
        owner._buffers[own] = value
