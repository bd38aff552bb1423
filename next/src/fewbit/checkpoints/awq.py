# SPDX-License-Identifier: Apache-2.0
"""AWQ checkpoints ("gemm") for vLLM, SGLang and transformers: 4 bits with zero points, packed along the outputs.

A layer with `in` inputs, `out` outputs and groups of `g` inputs is stored as

    qweight   int32    [in, out / 8]      eight integers from zero on: outputs 0 2 4 6 1 3 5 7 from the low end
    qzeros    int32    [in / g, out / 8]  the integer that means zero, in the same order
    scales    float16  [in / g, out]

and its weight is `scales · (integer - zero)`. Symmetric weights have the zero point 8. One group size holds for the
complete model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewbit.checkpoints._base import CheckpointFormat, CheckpointJob, LayerFormat, NamedTensor
from fewbit.checkpoints._folder import quantization_of, split_layers, write_folder
from fewbit.checkpoints._transposed import encode_words, group_size, half_scales, refuse_layer, refuse_scales, unsigned
from fewbit.checkpoints._weights import Integers, SafetensorsWeights
from fewbit.errors import ModelError
from fewbit.numerics.ops import Array
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType

if TYPE_CHECKING:
    from torch import Tensor

_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Outputs of a word, from the lowest nibble up."""


class Awq(CheckpointFormat):
    """4-bit integer weights with zero points and float16 scales: the layout of AutoAWQ."""

    name = "awq"
    extra = "torch"
    target = "vllm"
    float_head = "AWQ files hold the output layer in float"

    def adapt(self, layer: LayerFormat) -> LayerFormat:
        """Scales are float16; bfloat16 ones stay, since nearly all of them are exact in float16."""
        if layer.weight.scale_type is ScaleType.float32:
            return replace(layer, weight=layer.weight.replace(scale_type=ScaleType.float16))
        return layer

    def refusal(self, layer: LayerFormat, shape: tuple[int, ...] | None = None) -> str | None:
        """Why it cannot hold such a layer."""
        return refuse_layer(layer, shape, "AWQ", (4,))

    def mismatch(self, tensor: QTensor) -> str | None:
        """Scales that float16 does not have."""
        return refuse_scales(tensor, "AWQ")

    def check(self, job: CheckpointJob) -> None:
        """One group size, and no name of a float layer inside the name of a quantized one."""
        quantized, floats = split_layers(job.layers)
        sizes = sorted({group_size(layer.weight) for layer in quantized.values()})
        if len(sizes) > 1:
            raise ModelError(
                f"AWQ files have one group size, the layers have {' and '.join(map(str, sizes))}",
                code="checkpoint-group-size", expected="one size for all layers", hint="{group_size=32}",
            )  # fmt: skip
        for name in floats:
            inside = next((layer for layer in quantized if name in layer), None)
            if inside is not None:
                raise ModelError(
                    f"readers of AWQ files would take {inside} for float, because {name} is", code="checkpoint-names",
                    where=name, expected="names of float layers that are no part of others",
                    hint="{format=compressed-tensors}, which matches complete names",
                )  # fmt: skip

    def write(self, folder: Path, tensors: Iterable[NamedTensor], job: CheckpointJob) -> list[str]:
        """Weights, `config.json` with the quantization, and the files that readers need."""
        self.check(job)
        return write_folder(folder, tensors, job, _encode, quantization_config(job))

    def read(self, folder: Path) -> Iterator[tuple[str, Array]]:
        """Values by the names of the source's tensors, decoded from the layout alone."""
        weights = AwqWeights(folder)
        for name in weights:
            yield name, weights.read(name)

    def open(self, path: Path) -> AwqWeights | None:
        """A folder whose configuration names AWQ in the layout "gemm"."""
        if not path.is_dir():
            return None
        settings = quantization_of(path)
        if settings.get("quant_method", "awq" if "w_bit" in settings else "") != "awq":
            return None
        version = str(settings.get("version", "gemm")).lower()
        if version != "gemm":
            raise ModelError(
                f"the AWQ layout {version!r}", code="checkpoint-layout", where=str(path), expected="version gemm",
                hint="quantize the float model",
            )  # fmt: skip
        return AwqWeights(path)


class AwqWeights(SafetensorsWeights):
    """The weights of an AWQ folder."""

    anchor = "qweight"
    parts = ("qweight", "qzeros", "scales")

    def integers(self, layer: str) -> Integers:
        """The unpacked integers of a layer."""
        import torch

        scales = self.raw(f"{layer}.scales")
        codes = _unpacked(self.raw(f"{layer}.qweight"))
        (groups, _), width = scales.shape, codes.shape[1]
        group = torch.arange(width) // (width // groups)
        size = -1 if groups == 1 else width // groups
        return Integers(codes, _unpacked(self.raw(f"{layer}.qzeros")), scales.T, 4, group, size)

    def _shape(self, layer: str) -> tuple[int, ...]:
        width, words = self.stored[f"{layer}.qweight"]["shape"]
        return 8 * words, width

    def _decode(self, layer: str) -> Tensor:
        return self.integers(layer).values()

    def _encoded(self, layer: str) -> QTensor | None:
        return self.integers(layer).qtensor()


def quantization_config(job: CheckpointJob) -> dict[str, Any]:
    """The section `quantization_config` of `config.json`."""
    quantized, floats = split_layers(job.layers)
    return {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group_size(next(iter(quantized.values())).weight),
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": floats or None,
    }


def _encode(layer: str, tensor: QTensor) -> dict[str, Tensor]:
    codes, zero = unsigned(tensor)
    return {"qweight": _packed(codes), "qzeros": _packed(zero), "scales": half_scales(layer, tensor, "AWQ").T}


def _packed(integers: Tensor) -> Tensor:
    """[out, n] as words [n, out / 8]."""
    columns = integers.T.reshape(integers.shape[1], -1, 8)
    return encode_words(columns[..., _ORDER].flatten(1), 4)


def _unpacked(words: Tensor) -> Tensor:
    """The inverse, nibble by nibble: uint8 [out, n]."""
    import torch

    integers = torch.empty((8 * words.shape[1], words.shape[0]), dtype=torch.uint8)
    for place, output in enumerate(_ORDER):
        integers[output::8] = ((words >> (4 * place)) & 15).T.to(torch.uint8)
    return integers


CHECKPOINT = Awq()
