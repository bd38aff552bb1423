# SPDX-License-Identifier: Apache-2.0
"""compressed-tensors: what vLLM, SGLang and transformers load. Written and read back with the format's own library."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from fewbit.checkpoints._base import CheckpointFormat, CheckpointJob, LayerFormat, NamedTensor
from fewbit.checkpoints._folder import quantization_of, write_folder
from fewbit.checkpoints._weights import Integers, SafetensorsWeights, decode_words, float8_qtensor
from fewbit.errors import ModelError, require
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.ops import Array
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType, load_scale

if TYPE_CHECKING:
    from torch import Tensor

_STRATEGIES = {
    QSchemeType.per_tensor: "tensor",
    QSchemeType.per_channel: "channel",
    QSchemeType.per_group: "group",
    QSchemeType.per_block: "block",
    QSchemeType.per_token: "token",
}


class CompressedTensors(CheckpointFormat):
    """The format of llm-compressor."""

    name = "compressed_tensors"
    extra = "compressed-tensors"
    target = "vllm"
    float_head = "vLLM reads the output layer of compressed-tensors in float"

    def refusal(self, layer: LayerFormat, shape: tuple[int, ...] | None = None) -> str | None:
        """Why it cannot hold such a layer."""
        grid = layer.weight
        if grid.dtype.is_integer:
            if grid.dtype.bits > 8:
                return f"it has no weights of {grid.dtype.bits} bits"
            if grid.float_zero:
                return "it has no zero points that are floats"
            if grid.scale_type.is_power:
                return "it has no integers with power-of-two scales"
            return None
        if grid.dtype is Dtype.fp8_e4m3 and not grid.scale_type.is_power:
            return None
        if (grid.dtype, grid.scale_type) in (
            (Dtype.fp4, ScaleType.float8_e8m0fnu), (Dtype.fp4, ScaleType.float8_e4m3fn),
            (Dtype.fp8_e4m3, ScaleType.float8_e8m0fnu),
        ):  # fmt: skip
            return None
        return f"it has no weights of type {grid.dtype.name} with {grid.scale_type.name} scales"

    def write(self, folder: Path, tensors: Iterable[NamedTensor], job: CheckpointJob) -> list[str]:
        """Weights, `config.json` with the quantization, and the files that readers need."""
        require("compressed_tensors", extra=self.extra, purpose="the format compressed-tensors")

        def encode(layer: str, tensor: QTensor) -> dict[str, Tensor]:
            kind = job.layers[layer]
            assert kind is not None
            return _stored(tensor, _format_name(kind))

        return write_folder(folder, tensors, job, encode, quantization_config(job.layers))

    def read(self, folder: Path) -> Iterator[tuple[str, Array]]:
        """Values by the names of the source's tensors, as the format's library decodes them."""
        import torch
        from safetensors import safe_open

        require("compressed_tensors", extra=self.extra, purpose="the format compressed-tensors")
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.quantization import QuantizationConfig

        settings = orjson.loads((folder / "config.json").read_bytes())["quantization_config"]
        settings.pop("quant_method", None)
        config = QuantizationConfig.model_validate(settings)
        compressor = BaseCompressor.get_value_from_registry(config.format)
        schemes = {target: scheme for scheme in config.config_groups.values() for target in scheme.targets}
        modules: dict[str, dict[str, Tensor]] = {}
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, framework="pt") as stream:
                names = list(stream.keys())
                for name in names:
                    module, _, leaf = name.rpartition(".")
                    if leaf.startswith("weight_") or f"{module}.weight_scale" in names:
                        modules.setdefault(module, {})[leaf] = stream.get_tensor(name)
                    else:
                        yield name, stream.get_tensor(name)
                # a layer's tensors are written together, so no layer spans two files unless cut at a limit
                for module in [key for key, arrays in modules.items() if _is_complete(arrays)]:
                    arrays = modules.pop(module)
                    bias = arrays.pop("bias", None)
                    if bias is not None:
                        yield f"{module}.bias", bias
                    scheme = schemes.get(module) or schemes["Linear"]
                    arrays = {key: _widened(key, value) for key, value in arrays.items()}
                    if "weight_global_scale" in arrays:
                        yield f"{module}.weight", _decode_nvfp4(arrays)
                    else:
                        yield f"{module}.weight", compressor.decompress(arrays, scheme)["weight"].to(torch.float32)
        if modules:
            raise ModelError(
                f"tensors of {min(modules)} are missing", code="checkpoint-incomplete", where=str(folder),
                expected="packed weights with their scales", hint="write it again",
            )  # fmt: skip

    def open(self, path: Path) -> CompressedWeights | None:
        """A folder whose configuration names compressed-tensors."""
        if not path.is_dir() or quantization_of(path).get("quant_method") != "compressed-tensors":
            return None
        return CompressedWeights(path)


class CompressedWeights(SafetensorsWeights):
    """The weights of a compressed-tensors folder, decoded without the format's library."""

    parts = (
        "weight_packed", "weight", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx",
        "weight_global_scale", "input_scale", "input_zero_point", "input_global_scale",
    )  # fmt: skip

    def scheme(self, layer: str) -> dict[str, Any]:
        """The entry of `config_groups` that a layer belongs to: by its name, else by its class."""
        groups = list(self.settings["config_groups"].values())
        for group in groups:
            for target in group["targets"]:
                if target == layer or (target.startswith("re:") and re.match(target[3:], layer)):
                    return dict(group)
        return dict(next((group for group in groups if "Linear" in group["targets"]), groups[0]))

    def activation(self, name: str) -> QuantizationGrid | None:
        """How the input of a layer is quantized at run time."""
        settings = self.scheme(name.removesuffix(".weight")).get("input_activations")
        if not settings:
            return None
        by_name = {text: kind for kind, text in _STRATEGIES.items()} | {"tensor_group": QSchemeType.per_group}
        number = "fp4" if settings["num_bits"] == 4 and settings["type"] == "float" else f"int{settings['num_bits']}"
        dtype = Dtype.fp8_e4m3 if (settings["type"], settings["num_bits"]) == ("float", 8) else Dtype[number]
        size = settings.get("group_size") or -1
        powers = "uint8" in str(settings.get("scale_dtype"))
        kind = ScaleType.float8_e8m0fnu if powers else ScaleType.float32
        if settings["strategy"] == "tensor_group":
            kind = ScaleType.float8_e4m3fn
        return QuantizationGrid(
            dtype, by_name[settings["strategy"]], group_size=size, symmetric=settings.get("symmetric", True), scale_type=kind
        )

    def _find_layers(self) -> dict[str, str]:
        layers = [name.removesuffix(".weight_scale") for name in self.stored if name.endswith(".weight_scale")]
        return {f"{layer}.weight": layer for layer in layers}

    def _shape(self, layer: str) -> tuple[int, ...]:
        if f"{layer}.weight" in self.stored:
            return tuple(self.stored[f"{layer}.weight"]["shape"])
        shape = self.part(layer, "weight_shape")
        if shape is not None:
            return tuple(int(side) for side in shape)
        rows, half = self.stored[f"{layer}.weight_packed"]["shape"]
        return rows, 2 * half

    def _decode(self, layer: str) -> Tensor:
        weight = self._integers(layer)
        if weight is not None:
            return weight.values()
        values: Tensor = self._floats(layer).dequantize()
        return values

    def _encoded(self, layer: str) -> QTensor | None:
        weight = self._integers(layer)
        return self._floats(layer) if weight is None else weight.qtensor()

    def _integers(self, layer: str) -> Integers | None:
        """Unpacked integers; `None` for a weight of small floats."""
        import torch

        rows, width = self._shape(layer)
        packed, plain = self.part(layer, "weight_packed"), self.part(layer, "weight")
        settings = self.scheme(layer)["weights"]
        bits = settings["num_bits"]
        if settings["type"] != "int":
            return None
        middle = 1 << (bits - 1)
        if packed is not None:
            codes = _unpack(packed, bits, width)
        else:
            assert plain is not None
            codes = (plain.to(torch.int16) + middle).to(torch.uint8)
        scale = self.raw(f"{layer}.weight_scale")
        scale = scale.reshape(rows, -1) if scale.numel() >= rows else scale.reshape(1, 1).expand(rows, 1)
        zero = self.part(layer, "weight_zero_point")
        if zero is None:
            zero = torch.full(scale.shape, middle, dtype=torch.int16)
        elif zero.dtype is torch.int32:
            zero = _unpack(zero.T, bits, rows).T
        else:
            zero = zero.to(torch.int16).reshape(scale.shape) + middle
        index, groups = self.part(layer, "weight_g_idx"), scale.shape[1]
        group = torch.arange(width) // (width // groups) if index is None else index.long()
        size = -1 if settings["strategy"] in ("channel", "tensor") else width // groups
        return Integers(codes, zero, scale, bits, group, size)

    def _floats(self, layer: str) -> QTensor:
        import torch

        scale = self.raw(f"{layer}.weight_scale")
        packed = self.part(layer, "weight_packed")
        if packed is None:
            structure = self.scheme(layer)["weights"].get("block_structure") or (128, 128)
            return float8_qtensor(self.raw(f"{layer}.weight"), scale, tuple(structure))
        shape, outer = (packed.shape[0], 2 * packed.shape[1]), self.part(layer, "weight_global_scale")
        if outer is None:
            grid = QuantizationGrid(Dtype.fp4, QSchemeType.per_group, group_size=32, scale_type=ScaleType.float8_e8m0fnu)
            return QTensor(grid, shape, (1, 32), packed, scale.view(torch.uint8))
        grid = QuantizationGrid(Dtype.fp4, QSchemeType.per_group, group_size=16, scale_type=ScaleType.float8_e4m3fn)
        return QTensor(grid, shape, (1, 16), packed, scale.view(torch.uint8), global_scale=(1 / outer.float()).reshape(()))


def _unpack(words: Tensor, bits: int, count: int) -> Tensor:
    """Integers of words: dense, or 32 // bits per word as the library packed 3, 5, 6 and 7 bits before 0.18."""
    if words.shape[-1] == -(-count * bits // 32):
        return decode_words(words, bits, count)
    import torch

    shifts = torch.arange(0, 32 // bits * bits, bits, dtype=torch.int32)
    return ((words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)).to(torch.uint8).flatten(-2)[..., :count].contiguous()


def quantization_config(layers: Mapping[str, LayerFormat | None]) -> dict[str, Any]:
    """The section `quantization_config` of `config.json`.

    The most common format has the target `Linear`; others name their layers; float layers are ignored.
    """
    formats: dict[LayerFormat, list[str]] = {}
    for name, kind in layers.items():
        if kind is not None:
            formats.setdefault(kind, []).append(name)
    ordered = sorted(formats, key=lambda kind: -len(formats[kind]))
    groups = {
        f"group_{index}": {
            "targets": ["Linear"] if index == 0 else formats[kind],
            "weights": _arguments(kind.weight, dynamic=False),
            "input_activations": None if kind.activation is None else _arguments(kind.activation, dynamic=True),
            "output_activations": None,
            "format": _format_name(kind),
        }
        for index, kind in enumerate(ordered)
    }
    kinds = {group["format"] for group in groups.values()}
    return {
        "quant_method": "compressed-tensors",
        "format": kinds.pop() if len(kinds) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": [name for name, kind in layers.items() if kind is None],
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _stored(tensor: QTensor, kind: str) -> dict[str, Tensor]:
    """The arrays of one layer by the names the format has for them."""
    import torch
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    grid = tensor.grid
    scale = torch.as_tensor(load_scale(tensor.scale, grid.scale_type))
    integers = torch.as_tensor(tensor.codes())
    if kind in ("pack-quantized", "int-quantized"):
        shift = 0 if grid.dtype.signed else 1 << (grid.dtype.bits - 1)
        integers = (integers.to(torch.int16) - shift).to(torch.int8)
        arrays = {"weight_scale": _cast(scale, grid.scale_type.value)}
        if kind == "int-quantized":
            return {"weight": integers, **arrays}
        arrays = {"weight_packed": pack_to_int32(integers, grid.dtype.bits), **arrays}
        if grid.asymmetric:
            assert tensor.zero_point is not None
            zero = (torch.as_tensor(tensor.zero_point).to(torch.int16) - shift).to(torch.int8)
            arrays["weight_zero_point"] = pack_to_int32(zero, grid.dtype.bits, packed_dim=0).contiguous()
        return {**arrays, "weight_shape": torch.tensor(tensor.shape)}
    if kind == "float-quantized":
        return {"weight": integers.view(torch.float8_e4m3fn), "weight_scale": scale}
    if kind == "mxfp8-quantized":
        return {"weight": integers.view(torch.float8_e4m3fn), "weight_scale": torch.as_tensor(tensor.scale)}
    packed = integers[:, 0::2] | (integers[:, 1::2] << 4)  # the even column is the low nibble
    if kind == "mxfp4-pack-quantized":
        return {"weight_packed": packed, "weight_scale": torch.as_tensor(tensor.scale)}
    assert tensor.global_scale is not None
    return {
        "weight_packed": packed,
        "weight_scale": torch.as_tensor(tensor.scale).view(torch.float8_e4m3fn),
        "weight_global_scale": (1 / torch.as_tensor(tensor.global_scale)).reshape(1),
    }


def _format_name(kind: LayerFormat) -> str:
    grid = kind.weight
    if grid.dtype.is_integer:
        return "int-quantized" if kind.activation is not None and grid.dtype.bits == 8 else "pack-quantized"
    if grid.dtype is Dtype.fp4:
        return "nvfp4-pack-quantized" if grid.two_level else "mxfp4-pack-quantized"
    return "mxfp8-quantized" if grid.scale_type.is_power else "float-quantized"


def _arguments(grid: QuantizationGrid, *, dynamic: bool) -> dict[str, Any]:
    """`QuantizationArgs` of the library."""
    strategy = _STRATEGIES[grid.granularity]
    arguments: dict[str, Any] = {
        "num_bits": grid.dtype.bits,
        "type": "int" if grid.dtype.is_integer else "float",
        "symmetric": not grid.asymmetric,
        "strategy": "tensor_group" if grid.two_level else strategy,
        "dynamic": ("local" if grid.two_level else True) if dynamic else False,
    }
    if strategy == "group":
        arguments["group_size"] = grid.group_size
    if strategy == "block":
        arguments["block_structure"] = list(grid.block_size)
    if grid.scale_type is ScaleType.float8_e8m0fnu:
        arguments |= {"scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"}
    elif grid.two_level:
        arguments |= {"scale_dtype": "torch.float8_e4m3fn", "zp_dtype": "torch.float8_e4m3fn"}
    return arguments


def _cast(tensor: Any, dtype: str | None) -> Tensor:
    import torch

    value = torch.as_tensor(tensor)
    return value.to(getattr(torch, dtype)) if dtype is not None and value.is_floating_point() else value


def _decode_nvfp4(arrays: Mapping[str, Tensor]) -> Tensor:
    """In float32; the library multiplies in bfloat16."""
    import torch
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8

    rows, half = arrays["weight_packed"].shape
    elements = unpack_fp4_from_uint8(arrays["weight_packed"], rows, 2 * half, dtype=torch.float32)
    scale = (arrays["weight_scale"].float() / arrays["weight_global_scale"]).repeat_interleave(16, 1)
    return elements * scale


def _is_complete(arrays: Mapping[str, Any]) -> bool:
    return "weight_scale" in arrays and ("weight" in arrays or "weight_packed" in arrays)


def _widened(key: str, value: Tensor) -> Tensor:
    """Scales in float32, so that decoding does not round products."""
    import torch

    return value.float() if key == "weight_scale" and value.dtype in (torch.float16, torch.bfloat16) else value


CHECKPOINT = CompressedTensors()
