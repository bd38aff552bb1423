# SPDX-License-Identifier: Apache-2.0
"""GGUF: one file for llama.cpp, with tokenizer and chat template.

Integers that a block type of ggml can hold are stored as they are; tensors that arrive in float become what the preset
says (`q4_k_m` and so on, with llama.cpp's choice of types by layer), or stay in float. Files are read back with the
gguf library, which shares no code with the writer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fewbit.checkpoints._base import CheckpointFormat, CheckpointJob, LayerFormat, NamedTensor, StoredTensors
from fewbit.checkpoints._gguf.architecture import (
    ARCHITECTURES,
    ROPE_FACTORS,
    Architecture,
    describe,
    find_architecture,
    heads_kv,
    is_computed,
    reorder_rows,
    rope_factors,
)
from fewbit.checkpoints._gguf.blocks import BLOCK_TYPES, FLOAT_TYPES
from fewbit.checkpoints._gguf.search import search_blocks
from fewbit.checkpoints._gguf.tokenizer import describe_tokenizer, read_vocabulary
from fewbit.checkpoints._gguf.types import (
    FILE_TYPES,
    PRESET_TYPES,
    beyond_half,
    fit_width,
    map_integers,
    preset_type,
    transpose,
    type_for,
)
from fewbit.checkpoints._gguf.weights import GgufWeights
from fewbit.checkpoints._open import open_weights
from fewbit.errors import ModelError, require
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.ops import Array
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class GgmlTensor:
    """A tensor as it will be in the file.

    Args:
        type: ggml's.
        data: the bytes or numbers, rows in the order of the file.
        values: what they stand for, in the layout of the model.
    """

    type: str
    data: np.ndarray
    values: Tensor

    def dequantize(self) -> Tensor:
        """What the file gives back."""
        return self.values


class Gguf(CheckpointFormat):
    """One file for llama.cpp, with tokenizer and chat template."""

    name = "gguf"
    extra = "gguf"
    target = "llama_cpp"
    float_head = ""

    def adapt(self, layer: LayerFormat) -> LayerFormat:
        """Scales are float16; bfloat16 ones stay, since nearly all of them are exact in float16."""
        if layer.weight.scale_type is ScaleType.float32:
            return replace(layer, weight=layer.weight.replace(scale_type=ScaleType.float16))
        return layer

    def refusal(self, layer: LayerFormat, shape: tuple[int, ...] | None = None) -> str | None:
        """Why it cannot hold such a layer."""
        grid = layer.weight
        if layer.activation is not None:
            return "GGUF files hold quantized weights only, no activations"
        if grid.dtype in (Dtype.float16, Dtype.bfloat16):
            return None
        if not grid.dtype.is_integer or grid.dtype.bits > 8 or grid.free_zero:
            return f"no GGUF type holds {grid.dtype.name}" + (
                " with zero points that are floats" if grid.free_zero else ""
            )
        if grid.asymmetric and grid.dtype.bits > 5:
            return f"no GGUF type holds {grid.dtype.bits} bits with zero points"
        if grid.scale_type not in (ScaleType.float16, ScaleType.bfloat16):
            return f"GGUF files have float16 scales, which cannot hold {grid.scale_type.name} exactly"
        if grid.granularity not in (QSchemeType.per_group, QSchemeType.per_channel):
            return f"GGUF files have a scale per 32 inputs, not {grid.granularity.value}"
        if grid.granularity is QSchemeType.per_group and grid.group_size > 0 and grid.group_size % 32:
            return f"GGUF files have a scale per 32 inputs: groups of {grid.group_size} do not fit"
        if shape is not None and (len(shape) != 2 or shape[1 - grid.axis % 2] % 32):
            return f"GGUF blocks are 32 inputs: a weight of shape {list(shape)} does not fit"
        return None

    def mismatch(self, tensor: QTensor) -> str | None:
        """Scales and offsets that float16 does not have."""
        try:
            map_integers(transpose(tensor) if tensor.grid.axis % 2 else tensor)
        except ModelError as error:
            return error.what
        return None

    def check(self, job: CheckpointJob) -> None:
        """Architecture, tokenizer, and a place for every tensor."""
        require("gguf", extra=self.extra, purpose="GGUF files")
        require("transformers", extra="hf", purpose="GGUF files")
        weights = open_weights(job.source)
        kind = find_architecture(_config(weights))
        strangers = [name for name in weights if kind.target(name) is None and not is_computed(name)]
        if strangers:
            raise ModelError(
                f"llama.cpp's {kind.name!r} has no place for {len(strangers)} tensors", code="gguf-tensors",
                where=", ".join(strangers[:4]) + (" …" if len(strangers) > 4 else ""),
                expected="the tensors of that architecture and no others", hint="{format=compressed-tensors}",
            )  # fmt: skip
        if job.source.is_dir():
            read_vocabulary(job.source)

    def stored(self, tensor: NamedTensor, job: CheckpointJob) -> NamedTensor | None:
        """The tensor in blocks, rows in llama.cpp's order; `None` for buffers that llama.cpp computes."""
        if isinstance(tensor.value, GgmlTensor):
            return tensor
        plan = _plan(job)
        target = plan.kind.target(tensor.name)
        if target is None:
            return None
        return replace(tensor, value=_convert(tensor, target, plan))

    def write(self, folder: Path, tensors: Iterable[NamedTensor], job: CheckpointJob) -> list[str]:
        """The file `NAME-TYPE.gguf`."""
        import gguf

        self.check(job)
        plan = _plan(job)
        file = folder / f"{plan.name}.gguf"
        factors = rope_factors(plan.config)
        with closing(gguf.GGUFWriter(file, plan.kind.name)) as writer:
            writer.add_type("model")
            writer.add_name(plan.title)
            writer.add_file_type(plan.file_type)
            writer.add_quantization_version(2)
            describe(writer, plan.config, plan.kind)
            _describe_tokenizer(writer, plan)
            places = _announce(writer, plan, factors)
            assert writer.fout is not None
            stream = writer.fout[0]
            if factors is not None:
                stream.seek(places[ROPE_FACTORS])
                stream.write(factors.tobytes())
            for tensor in tensors:
                converted, target = self.stored(tensor, job), plan.kind.target(tensor.name)
                if converted is not None and target is not None:
                    assert isinstance(converted.value, GgmlTensor)
                    stream.seek(places[target])
                    stream.write(np.ascontiguousarray(converted.value.data).tobytes())
            stream.seek(0, 2)
            stream.write(b"\0" * (-stream.tell() % 32))
        return [file.name]

    def read(self, folder: Path) -> Iterator[tuple[str, Array]]:
        """Values by the names of the source's tensors, decoded by the gguf library."""
        weights = self.open(folder)
        assert weights is not None, folder
        for name in weights:
            yield name, weights.read(name)

    def open(self, path: Path) -> GgufWeights | None:
        """A `.gguf` file, or a folder with one and nothing else to load."""
        if path.is_dir():
            files = sorted(path.glob("*.gguf"))
            if len(files) != 1 or any(path.glob("*.safetensors")):
                return None
            path = files[0]
        return GgufWeights(path) if path.suffix == ".gguf" and path.is_file() else None


@dataclass(frozen=True, eq=False)
class _Plan:
    """What a file will hold, from headers alone."""

    job: CheckpointJob
    weights: StoredTensors
    config: Any
    kind: Architecture

    @cached_property
    def types(self) -> dict[str, str]:
        """ggml's type of each tensor of the model."""
        names = [name for name in self.weights if self.kind.target(name) is not None]
        tied = not any(self.kind.target(name) == "output.weight" for name in names)
        return {name: self._type(name, tied=tied) for name in names}

    def _type(self, name: str, *, tied: bool) -> str:
        shape, target = self.weights.shape(name), self.kind.target(name)
        assert target is not None
        layer = self.job.layers.get(name.removesuffix(".weight"))
        if layer is not None:
            return type_for(layer.weight)
        if len(shape) != 2:
            return "F32"
        if not self.job.preset or name in self.job.keep:
            dtype = str(self.weights.headers[name]["dtype"])
            return dtype if dtype in FLOAT_TYPES and not self.weights.quantized(name) else "F32"
        columns = shape[0] if self.kind.is_transposed(target) else shape[1]
        return fit_width(preset_type(self.job.preset, target, self.config, tied=tied), columns)

    @property
    def common(self) -> str:
        """The type of most weights."""
        sizes: Counter[str] = Counter()
        for name, kind in self.types.items():
            sizes[kind] += prod(self.weights.shape(name))
        return sizes.most_common(1)[0][0]

    @property
    def file_type(self) -> int:
        """llama.cpp's number for such files."""
        if self.job.preset in FILE_TYPES and self.job.preset:
            return FILE_TYPES[self.job.preset]
        if self.job.preset:
            return BLOCK_TYPES[PRESET_TYPES[self.job.preset]].file_type
        return {"F32": 0, "F16": 1, "BF16": 32}.get(self.common) or (
            BLOCK_TYPES[self.common].file_type if self.common in BLOCK_TYPES else 0
        )

    @property
    def stem(self) -> str:
        """What the source is called."""
        source = self.job.source
        return str(self.job.facts.get("name") or (source.stem if source.suffix == ".gguf" else source.resolve().name))

    @property
    def name(self) -> str:
        """Of the file: `SmolLM2-135M-q4_k_m`."""
        return f"{self.stem}-{self.job.preset or self.common.lower()}"

    @property
    def title(self) -> str:
        """`general.name`; llama.cpp looks up certain tokens of a model that is called phi-3, whatever it is."""
        vocabulary = read_vocabulary(self.job.source) if self.job.source.is_dir() else None
        is_phi = re.search(r"phi-?3", self.stem.lower()) is not None
        return "model" if is_phi and vocabulary is not None and "</s>" not in vocabulary.tokens.values() else self.stem


@lru_cache(maxsize=2)
def _plan(job: CheckpointJob) -> _Plan:
    weights = open_weights(job.source)
    config = _config(weights)
    return _Plan(job, weights, config, find_architecture(config))


def _convert(tensor: NamedTensor, target: str, plan: _Plan) -> GgmlTensor:
    import torch

    kind, name = plan.kind, plan.types[tensor.name]
    transposed = kind.is_transposed(target)
    if isinstance(tensor.value, QTensor):
        blocks = map_integers(transpose(tensor.value) if transposed else tensor.value, tensor.name)
        values = blocks.values()
    else:
        source = torch.as_tensor(tensor.value)
        source = source.T if transposed else source
        shift = kind.shift_of(target)
        if name in FLOAT_TYPES:
            source = (source.float() + shift if shift else source).to(getattr(torch, FLOAT_TYPES[name]))
            back = source.float() - shift if shift else source.float()
            source = _reorder(source.contiguous(), target, plan)
            data = (source.view(torch.int16) if name == "BF16" else source).numpy()
            if not bool(torch.isfinite(back).all()) and bool(torch.isfinite(torch.as_tensor(tensor.value)).all()):
                raise beyond_half(tensor.name, "its largest weights")
            return GgmlTensor(name, data, back.T.contiguous() if transposed else back)
        blocks = search_blocks(source.float(), BLOCK_TYPES[name])
        values = blocks.values()
        lost = (values.reshape(source.shape) - source).square().sum()
        if not bool(lost <= 0.5 * source.float().square().sum()):  # NaN and infinity too
            raise beyond_half(tensor.name, "a scale")
    rows = tensor.value.shape[1 if transposed else 0]
    values = values.reshape(rows, -1)
    data = _reorder(torch.from_numpy(blocks.pack().reshape(rows, -1)), target, plan).numpy()
    return GgmlTensor(name, data, values.T.contiguous() if transposed else values)


def _announce(writer: Any, plan: _Plan, factors: np.ndarray | None) -> dict[str, int]:
    """Write everything before the tensors; returns where each begins."""
    import gguf

    sizes: dict[str, int] = {}
    if factors is not None:
        writer.add_tensor_info(ROPE_FACTORS, factors.shape, factors.dtype, factors.nbytes)
        sizes[ROPE_FACTORS] = factors.nbytes
    for name, type_name in plan.types.items():
        target, shape = plan.kind.target(name), plan.weights.shape(name)
        assert target is not None
        shape = shape[::-1] if plan.kind.is_transposed(target) else shape
        kind = gguf.GGMLQuantizationType[type_name]
        elements, width = gguf.GGML_QUANT_SIZES[kind]
        sizes[target] = prod(shape) // elements * width
        writer.add_tensor_info(target, shape, np.dtype(np.float32), sizes[target], raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    stream = writer.fout[0]
    start = stream.tell() + -stream.tell() % 32
    places = {}
    for target, size in sizes.items():
        places[target] = start
        start += size + -size % 32
    return places


def _describe_tokenizer(writer: Any, plan: _Plan) -> None:
    """From `tokenizer.json`, or as it stands in another GGUF file."""
    if isinstance(plan.weights, GgufWeights):
        plan.weights.copy_tokenizer(writer)
    else:
        describe_tokenizer(writer, plan.job.source, plan.config)


def _reorder(rows: Tensor, target: str, plan: _Plan) -> Tensor:
    count = plan.kind.heads_of(target, plan.config.num_attention_heads, heads_kv(plan.config))
    return rows[reorder_rows(len(rows), count)] if count else rows


def _config(weights: StoredTensors) -> Any:
    """The configuration as transformers completes it."""
    from transformers import CONFIG_MAPPING

    values: Mapping[str, Any] = weights.config()
    kind = str(values.get("model_type"))
    if kind not in CONFIG_MAPPING:
        raise ModelError(
            f"transformers has no model type {kind!r}", code="gguf-architecture", where=str(weights.path),
            expected=", ".join(ARCHITECTURES), hint="{format=safetensors}",
        )  # fmt: skip
    return CONFIG_MAPPING[kind].from_dict(dict(values))


CHECKPOINT = Gguf()
