# SPDX-License-Identifier: Apache-2.0
"""llm-compressor, with the recipes of its documentation: zeros first, then weights rounded in the same pass.

`_mse` searches scales by squared error. `_gptq` rounds with GPTQ, which version 0.14 does without regard to zeros.
"""

from __future__ import annotations

from typing import Any

from compressed_tensors.offload import disable_offloading, dispatch_model
from compressed_tensors.quantization import QuantizationArgs, forward_quantize, preset_name_to_scheme
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.pruning import MagnitudePruningModifier, SparseGPTModifier, WandaPruningModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from torch import Tensor
from torch.utils.data import DataLoader

STRUCTURES = {"half": "0:0", "half_w4": "0:0", "2of4": "2:4", "2of4_w4": "2:4"}
HEAD = ["re:.*lm_head"]
GROUP = 64


def quantize(model: Any, tokens: Tensor, *, format: str, way: str, folder: str) -> Any:
    """All linear layers but the head, in place."""
    samples = [{"input_ids": row, "attention_mask": row.new_ones(row.shape)} for row in tokens]
    options = {"num_calibration_samples": len(tokens), "max_seq_length": tokens.shape[1]}
    dataset: Any = DataLoader(samples, batch_size=1)  # type: ignore[arg-type]
    made = oneshot(model=model, recipe=_recipe(format, way), dataset=dataset, **options)
    return dispatch_model(made) if model.device.type == "cuda" else made  # it is left on the CPU otherwise


def weights(model: Any) -> dict[str, Tensor]:
    """Every parameter of the blocks as it computes with them."""
    with disable_offloading():
        found = {name: value for name, value in model.named_parameters() if ".layers." in name}
        for name, module in model.named_modules():
            scheme = getattr(module, "quantization_scheme", None)
            if scheme is not None:
                found[f"{name}.weight"] = forward_quantize(module, module.weight, "weight", scheme.weights)
    return {name: value for name, value in found.items() if name.rsplit(".", 1)[-1] == "weight"}


def _recipe(format: str, way: str) -> list[Any]:
    way, _, rounding = way.partition("_")
    structure = STRUCTURES[format]
    if way == "magnitude":  # from the first batch to the last the same; only the weights of the blocks
        zeros: Any = MagnitudePruningModifier(
            targets=["re:.*_proj$"], init_sparsity=0.5, final_sparsity=0.5, update_scheduler="linear", start=0,
            end=1,
        )  # fmt: skip
    else:
        kind = SparseGPTModifier if way == "sparsegpt" else WandaPruningModifier
        zeros = kind(sparsity=0.5, mask_structure=structure, targets=["Linear"], ignore=HEAD)
    if not format.endswith("_w4"):
        return [zeros]
    scheme = preset_name_to_scheme("W4A16", ["Linear"])
    changed = {"group_size": GROUP} | ({"observer": "memoryless_mse"} if rounding == "mse" else {})
    scheme.weights = QuantizationArgs(**{**scheme.weights.model_dump(), **changed})
    narrow = GPTQModifier if rounding == "gptq" else QuantizationModifier
    return [zeros, narrow(config_groups={"group_0": scheme}, ignore=["lm_head"])]
