# SPDX-License-Identifier: Apache-2.0
"""GPTQ checkpoints for vLLM, SGLang, GPTQModel and transformers: symmetric integers, packed along the inputs.

A layer with `in` inputs, `out` outputs and groups of `g` inputs is stored as

    qweight   int32    [in · bits / 32, out]     integers from zero on, the first input in the lowest bits
    qzeros    int32    [in / g, out · bits / 32]  the integer that means zero, minus one in version 1 of the format
    scales    float16  [in / g, out]
    g_idx     int32    [in]                       the group of each input

and its weight is `scales[g_idx] · (integer - zero)`. What vLLM takes is restated from its source: symmetric 4 and 8
bits; GPTQModel takes 2 and 3 bits too. Layers of other widths than most are listed under `dynamic`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewbit.checkpoints._base import CheckpointFormat, CheckpointJob, LayerFormat, NamedTensor
from fewbit.checkpoints._folder import quantization_of, split_layers, write_folder
from fewbit.checkpoints._transposed import encode_words, group_size, half_scales, refuse_layer, refuse_scales, unsigned
from fewbit.checkpoints._weights import Integers, SafetensorsWeights, decode_words
from fewbit.numerics.ops import Array
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType

if TYPE_CHECKING:
    from torch import Tensor

_BITS = (2, 3, 4, 8)


class Gptq(CheckpointFormat):
    """Integer weights, symmetric, with float16 scales: the layout of AutoGPTQ and GPTQModel."""

    name = "gptq"
    extra = "torch"
    target = "vllm"
    float_head = "GPTQ files hold the output layer in float"

    def adapt(self, layer: LayerFormat) -> LayerFormat:
        """Scales are float16; bfloat16 ones stay, since nearly all of them are exact in float16."""
        if layer.weight.scale_type is ScaleType.float32:
            return replace(layer, weight=layer.weight.replace(scale_type=ScaleType.float16))
        return layer

    def refusal(self, layer: LayerFormat, shape: tuple[int, ...] | None = None) -> str | None:
        """Why it cannot hold such a layer."""
        if layer.weight.asymmetric:
            return "GPTQ files with zero points are read by no current kernel; AWQ and compressed-tensors hold them"
        return refuse_layer(layer, shape, "GPTQ", _BITS)

    def mismatch(self, tensor: QTensor) -> str | None:
        """Scales that float16 does not have."""
        return refuse_scales(tensor, "GPTQ")

    def write(self, folder: Path, tensors: Iterable[NamedTensor], job: CheckpointJob) -> list[str]:
        """Weights, `config.json` with the quantization, and the files that readers need."""
        return write_folder(folder, tensors, job, _encode, quantization_config(job))

    def read(self, folder: Path) -> Iterator[tuple[str, Array]]:
        """Values by the names of the source's tensors, decoded from the layout alone."""
        weights = GptqWeights(folder)
        for name in weights:
            yield name, weights.read(name)

    def open(self, path: Path) -> GptqWeights | None:
        """A folder whose configuration names GPTQ."""
        if not path.is_dir():
            return None
        settings = quantization_of(path)
        method = settings.get("quant_method", "gptq" if "desc_act" in settings else "")
        return GptqWeights(path) if method == "gptq" else None


class GptqWeights(SafetensorsWeights):
    """The weights of a GPTQ folder, of any width, with or without zero points and activation order."""

    anchor = "qweight"
    parts = ("qweight", "qzeros", "scales", "g_idx")

    def integers(self, layer: str) -> Integers:
        """The unpacked integers of a layer."""
        import torch

        words, scales = self.raw(f"{layer}.qweight"), self.raw(f"{layer}.scales")
        width, (groups, out) = self._shape(layer)[1], scales.shape
        bits = 32 * words.shape[0] // width
        codes = decode_words(words.T, bits, width)
        zero = decode_words(self.raw(f"{layer}.qzeros"), bits, out).to(torch.int16)
        zero += 0 if self.settings.get("checkpoint_format") == "gptq_v2" else 1
        index = self.part(layer, "g_idx")
        group = torch.arange(width) // (width // groups) if index is None else index.long()
        return Integers(codes, zero.T, scales.T, bits, group, -1 if groups == 1 else width // groups)

    def _shape(self, layer: str) -> tuple[int, ...]:
        out = self.stored[f"{layer}.scales"]["shape"][1]
        if f"{layer}.g_idx" in self.stored:
            return out, self.stored[f"{layer}.g_idx"]["shape"][0]
        words, zeros = self.stored[f"{layer}.qweight"]["shape"][0], self.stored[f"{layer}.qzeros"]["shape"][1]
        return out, words * out // zeros  # as many integers per word along both axes

    def _decode(self, layer: str) -> Tensor:
        return self.integers(layer).values()

    def _encoded(self, layer: str) -> QTensor | None:
        return self.integers(layer).qtensor()


def quantization_config(job: CheckpointJob) -> dict[str, Any]:
    """The section `quantization_config` of `config.json`; the most common width and group size are the default."""
    quantized, floats = split_layers(job.layers)
    kinds = {name: (layer.weight.dtype.bits, group_size(layer.weight)) for name, layer in quantized.items()}
    (bits, size), _ = Counter(kinds.values()).most_common(1)[0]
    dynamic: dict[str, dict[str, int]] = {f"-:^{re.escape(name)}$": {} for name in floats}
    for name, kind in kinds.items():
        if kind != (bits, size):
            dynamic[f"+:^{re.escape(name)}$"] = {"bits": kind[0], "group_size": kind[1]}
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": size,
        "sym": True,
        "desc_act": False,
        "lm_head": False,
        "checkpoint_format": "gptq",
        "pack_dtype": "int32",
        "dynamic": dynamic,
        "modules_in_block_to_quantize": [list(kinds)],
    }


def _encode(layer: str, tensor: QTensor) -> dict[str, Tensor]:
    import torch

    bits, width = tensor.grid.dtype.bits, tensor.shape[1]
    codes, zero = unsigned(tensor)
    return {
        "qweight": encode_words(codes, bits).T,
        "qzeros": encode_words(zero.T - 1, bits),
        "scales": half_scales(layer, tensor, "GPTQ").T,
        "g_idx": torch.arange(width, dtype=torch.int32) // tensor.block[1],
    }


CHECKPOINT = Gptq()
