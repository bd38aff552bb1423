# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters in peft's own layout: `adapter_config.json` and `adapter_model.safetensors`.

`peft.PeftModel.from_pretrained(base, folder)` reads them, and so does transformers if peft is installed. Only the
adapters are written, with the modules that were trained next to them (the head of a task, statistics of batch norm);
the base model stays where it is.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fewbit.errors import UsageError, require
from fewbit.modules.coded import Quantized
from fewbit.modules.huggingface import is_pretrained
from fewbit.modules.peft_folder import WEIGHTS
from fewbit.tuning.adapters import ADAPTER, adapted
from fewbit.tuning.masks import pruned_zeros
from fewbit.tuning.options import Options
from fewbit.tuning.pruned_codes import pruned_codes
from fewbit.tuning.targets import find_targets, linear_layers, task_heads


def refuse_unsavable(model: nn.Module, options: Options) -> None:
    """Refuse, before training, adapters that peft's layout cannot hold.

    Args:
        model: as it is given, without adapters.
        options: of the run.

    Raises:
        UsageError: an update that is masked because the weight is pruned; names that peft would confuse.
    """
    layers, targets = linear_layers(model), find_targets(model, options.targets)
    pruned = [name for name in targets if options.hold_zeros and _is_pruned(layers[name])]
    if pruned:
        raise UsageError(
            f"merge=False with pruned weights ({pruned[0]}, {len(pruned)} in all): updates are masked where a weight "
            "is zero, and a peft adapter cannot hold a mask",
            where="merge",
            expected="merge=True, which keeps the zeros, or a model without pruned weights",
            try_="merge=True; or hold_zeros=False, which fills the zeros",
        )
    saved = _modules_to_save(model, task_heads(model) - set(targets))
    confused = [(name, target) for name in saved for target in targets if target != name and target.endswith(name)]
    if confused:
        raise UsageError(
            f"merge=False: peft finds trained modules by the end of their names, and {confused[0][0]!r} is the end of "
            f"the adapted layer {confused[0][1]!r} too",
            where="merge",
            expected="merge=True, or a model whose names can be told apart",
        )


def save_adapters(model: nn.Module, folder: Path, *, source: str | None = None) -> None:
    """Write a model's adapters as peft does.

    Args:
        model: with adapters of `add_adapters`.
        folder: that exists.
        source: the path of the base model; a Hugging Face model knows its own.
    """
    peft = require("peft", extra="tune", purpose="LoRA")
    safetensors: Any = require("safetensors.torch", extra="hf", purpose="writing adapters")
    layers = dict(adapted(model))
    config = copy.copy(vars(model)["peft_config"][ADAPTER])
    heads = {
        name
        for name, module in model.named_modules()
        if any(p.requires_grad for p in module.parameters(recurse=False)) and not _inside(name, layers)
    }
    saved = _modules_to_save(model, heads)
    found = {name: value for name, value in model.named_parameters() if ".lora_" in name}
    found = peft.get_peft_model_state_dict(model, found, ADAPTER, save_embedding_layers=False)
    for name in saved:
        state = model.get_submodule(name).state_dict()
        found |= {f"{name}.{key}": value for key, value in state.items() if isinstance(value, Tensor)}
    config.target_modules = _shortest(model, layers)
    config.modules_to_save = saved or None
    config.base_model_name_or_path = _base(model, source)
    config.task_type = "CAUSAL_LM" if type(model).__name__.endswith("ForCausalLM") else None
    config.inference_mode = True
    mapping = None
    if config.task_type is None and is_pretrained(model):
        mapping = {"base_model_class": type(model).__name__, "parent_library": type(model).__module__}
    config.save_pretrained(folder, auto_mapping_dict=mapping)
    tensors = {f"base_model.model.{name}": value.detach().cpu().contiguous() for name, value in found.items()}
    safetensors.save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def _base(model: Any, source: str | None) -> str | None:
    """Where the base model is: an absolute path if it is on this machine."""
    found = source or getattr(model, "name_or_path", None) or None
    place = None if found is None else Path(found).expanduser()
    return str(place.resolve()) if place is not None and place.exists() else found


def _is_pruned(layer: Any) -> bool:
    coded = isinstance(layer, Quantized) and "weight" in layer.coded
    return (pruned_codes(layer, "weight") if coded else pruned_zeros(layer.weight)) is not None


def _modules_to_save(model: nn.Module, heads: set[str]) -> list[str]:
    """Modules that training changes next to the adapters: heads that learn, batch norm's running statistics."""
    norms = {
        name for name, each in model.named_modules() if isinstance(each, _NormBase) and each.running_mean is not None
    }
    return sorted(heads | norms)


def _inside(name: str, layers: dict[str, Any]) -> bool:
    return any(name == layer or name.startswith(f"{layer}.") for layer in layers)


def _shortest(model: nn.Module, layers: dict[str, Any]) -> list[str] | str:
    """The last parts of the names if they name just these layers, as other tools expect; else an expression."""
    ends = {name.rpartition(".")[2] for name in layers}
    every = {name for name, _ in model.named_modules() if name.rpartition(".")[2] in ends}
    if every == set(layers):
        return sorted(ends)
    config: Any = vars(model)["peft_config"][ADAPTER]
    expression: str = config.target_modules
    return expression
