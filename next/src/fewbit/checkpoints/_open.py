# SPDX-License-Identifier: Apache-2.0
"""Opens the weights of any checkpoint: float or quantized, by whatever tool, as tensors of the float model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fewbit import registry
from fewbit.checkpoints._base import StoredTensors
from fewbit.checkpoints._folder import quantization_of
from fewbit.checkpoints._weights import SafetensorsWeights, float8_qtensor
from fewbit.errors import ModelError
from fewbit.numerics.qtensor import QTensor

if TYPE_CHECKING:
    from torch import Tensor

_FP8_METHODS = ("fp8", "fbgemm_fp8", "modelopt")


def open_weights(path: Path) -> StoredTensors:
    """The tensors of a folder or a `.gguf` file by the names of the float model.

    Quantized tensors are decoded one at a time, when they are read. Formats are asked in turn; a folder that none
    knows is a float model, or one with fp8 weights.

    Args:
        path: a Hugging Face folder, a folder that fewbit wrote, or a `.gguf` file.

    Raises:
        ModelError: quantized in a way that fewbit cannot read, or damaged.
    """
    for checkpoint in registry.members("checkpoints").values():
        weights: StoredTensors | None = checkpoint.open(path)
        if weights is not None:
            return weights
    settings = quantization_of(path)
    method = str(settings.get("quant_method", settings.get("quant_algo", "")))
    if method in _FP8_METHODS and any(entry["dtype"] in ("F8_E4M3", "F8_E5M2") for entry in _stored(path).values()):
        return Float8Weights(path)
    if method:
        raise ModelError(
            f"weights that were quantized by {method!r} cannot be read", code="model-quantized", where=str(path),
            expected="float weights, compressed-tensors, GPTQ, AWQ, FP8, GGUF, or a folder that fewbit wrote",
            hint="the float model",
        )  # fmt: skip
    return SafetensorsWeights(path)


class Float8Weights(SafetensorsWeights):
    """Weights in fp8 as transformers and DeepSeek store them: one scale per tensor, output or rectangle."""

    parts = ("weight", "weight_scale_inv", "weight_scale", "input_scale")

    def _find_layers(self) -> dict[str, str]:
        names = [name for name, entry in self.stored.items() if entry["dtype"] in ("F8_E4M3", "F8_E5M2")]
        layers = [name.removesuffix(".weight") for name in names if name.endswith(".weight")]
        return {f"{layer}.weight": layer for layer in layers if self._scale(layer) is not None}

    def _scale(self, layer: str) -> str | None:
        names = (f"{layer}.weight_scale_inv", f"{layer}.weight_scale")
        return next((name for name in names if name in self.stored), None)

    def _shape(self, layer: str) -> tuple[int, ...]:
        return tuple(self.stored[f"{layer}.weight"]["shape"])

    def _decode(self, layer: str) -> Tensor:
        """In plain torch; despite its name, `weight_scale_inv` is multiplied."""
        import torch

        name = self._scale(layer)
        assert name is not None
        weight, scale = self.raw(f"{layer}.weight").float(), self.raw(name).float()
        if scale.ndim == 2 and scale.numel() not in (1, weight.shape[0]):
            height, width = self._block_size()
            rows, columns = torch.arange(weight.shape[0]) // height, torch.arange(weight.shape[1]) // width
            scale = scale[rows][:, columns]
        elif scale.numel() > 1:
            scale = scale.reshape(-1, 1)
        return weight * scale

    def _encoded(self, layer: str) -> QTensor:
        name = self._scale(layer)
        assert name is not None
        return float8_qtensor(self.raw(f"{layer}.weight"), self.raw(name), self._block_size())

    def _block_size(self) -> tuple[int, int]:
        height, width = self.settings.get("weight_block_size") or (128, 128)
        return int(height), int(width)


def _stored(path: Path) -> dict[str, dict[str, object]]:
    return SafetensorsWeights(path).stored
