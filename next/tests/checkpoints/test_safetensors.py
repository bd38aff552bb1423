# SPDX-License-Identifier: Apache-2.0
"""fewbit's own folder: every grid, read back by a decoder that shares no code with the numerics."""

import json

import pytest
import torch

from fewbit.checkpoints._base import CheckpointJob, LayerFormat, NamedTensor
from fewbit.checkpoints._shards import ShardWriter
from fewbit.checkpoints._verification import write_verified
from fewbit.checkpoints.safetensors import CHECKPOINT
from fewbit.errors import ModelError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import BlockShape, QSchemeType
from fewbit.numerics.grid import BLOCK_FORMATS, QuantizationGrid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import qparams_from_min_max
from fewbit.numerics.scales import ScaleType
from tiny_checkpoints import read_tensors, save_llama, write_quantized

GROUP = QSchemeType.per_group
ELEMENTS = [dtype for dtype in Dtype if dtype.bits <= 16 and dtype is not Dtype.int32]


def encode(weight, grid):
    block = grid.weight_block(tuple(weight.shape))
    low, high = BlockShape(tuple(weight.shape), block).extremes(weight)
    return QTensor.encode(weight, qparams_from_min_max(low, high, grid, block))


def roundtrip(folder, tensors, layers):
    folder.mkdir()
    return write_verified(CHECKPOINT, folder, tensors, CheckpointJob(folder.parent, layers))


def test_every_element_type_and_granularity(tmp_path):
    weight = torch.randn(24, 70, generator=torch.Generator().manual_seed(0))
    grids = [QuantizationGrid(dtype, GROUP, group_size=32) for dtype in ELEMENTS]  # the last group is short
    grids += [QuantizationGrid(Dtype.uint4, kind, symmetric=False) for kind in QSchemeType]
    grids += [QuantizationGrid(Dtype.int5, GROUP, group_size=16, scale_type=kind) for kind in set(ScaleType)]
    grids += [
        QuantizationGrid(kind.element, GROUP, group_size=kind.group_size, scale_type=kind.scale_type)
        for kind in BLOCK_FORMATS.values()
    ]
    grids += [QuantizationGrid(Dtype.uint3, GROUP, group_size=16, symmetric=False, float_zero=True)]
    grids += [
        QuantizationGrid(Dtype.int4, GROUP, axis=1, group_size=8),
        QuantizationGrid(Dtype.fp8_e4m3, QSchemeType.per_block, block_size=(16, 16)),
    ]
    values = {f"l{index}": encode(weight, grid) for index, grid in enumerate(grids)}
    tensors = [NamedTensor(f"{name}.weight", tensor, name) for name, tensor in values.items()]
    tensors.append(NamedTensor("bias", torch.ones(3, dtype=torch.bfloat16)))
    _, count = roundtrip(tmp_path / "out", tensors, {name: LayerFormat(tensor.grid) for name, tensor in values.items()})
    assert count == len(grids) + 1
    weights = CHECKPOINT.open(tmp_path / "out")
    for name, tensor in values.items():
        stored = weights.qtensor(f"{name}.weight")
        assert stored.grid == tensor.grid and torch.equal(stored.codes(), tensor.codes())
        assert torch.equal(weights.read(f"{name}.weight"), tensor.dequantize())


def test_a_model_with_its_tokenizer(tmp_path):
    source = save_llama(tmp_path / "model")
    grid = QuantizationGrid(Dtype.int4, GROUP, group_size=32, scale_type=ScaleType.bfloat16)
    values = write_quantized(source, tmp_path / "out", CHECKPOINT, LayerFormat(grid, QuantizationGrid(Dtype.int8)))
    assert (tmp_path / "out/tokenizer.json").exists() and not (tmp_path / "out/model.safetensors").exists()
    weights = CHECKPOINT.open(tmp_path / "out")
    assert set(weights) == set(values) == set(read_tensors(source))
    assert weights.activation("model.layers.0.mlp.up_proj.weight") == QuantizationGrid(Dtype.int8)
    assert weights.headers["model.layers.0.mlp.up_proj.weight"]["shape"] == [96, 64]
    assert weights.headers["model.layers.0.mlp.up_proj.weight"]["dtype"] == "BF16"
    assert weights.config()["hidden_size"] == 64 and "quantization_config" not in weights.config()


def test_a_folder_that_is_not_complete(tmp_path):
    source = save_llama(tmp_path / "model")
    grid = QuantizationGrid(Dtype.int4, GROUP, group_size=32)
    write_quantized(source, tmp_path / "out", CHECKPOINT, LayerFormat(grid))
    file = tmp_path / "out/fewbit.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "version": 99}))
    with pytest.raises(ModelError, match="version is 99"):
        CHECKPOINT.open(tmp_path / "out")
    content["layers"]["other"] = next(iter(content["layers"].values()))
    file.write_text(json.dumps(content))
    with pytest.raises(ModelError, match="not in the weight files"):
        CHECKPOINT.open(tmp_path / "out")
    weights = tmp_path / "out/fewbit.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match="cut short"):
        CHECKPOINT.open(tmp_path / "out")


def test_large_files_are_streamed_and_small_tensors_come_last(tmp_path, monkeypatch):
    """Beyond the buffer tensors go to disk at once; the header is filled with spaces; large tensors stay aligned."""
    from fewbit.checkpoints import _shards

    monkeypatch.setattr(_shards, "_BUFFERED", 10_000)
    writer = ShardWriter(tmp_path)
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for index in range(5):
        tensors[f"{index}.weight"] = torch.randint(0, 255, (64, 128), dtype=torch.uint8, generator=generator)
        tensors[f"{index}.scale"] = torch.rand(3, generator=generator).bfloat16()
        tensors[f"{index}.shape"] = torch.tensor([64, 128])
        tensors[f"{index}.empty"] = torch.empty(0)
    tensors["odd"] = torch.arange(5001, dtype=torch.uint8)
    for name, tensor in tensors.items():
        writer.add(name, tensor)
    assert writer.close() == ["model.safetensors"]
    stored = read_tensors(tmp_path)
    assert stored.keys() == tensors.keys()
    assert all(
        torch.equal(stored[name], tensor) and stored[name].dtype == tensor.dtype for name, tensor in tensors.items()
    )
    with open(tmp_path / "model.safetensors", "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    assert all(header[f"{index}.weight"]["data_offsets"][0] % 8 == 0 for index in range(5))
    assert length == 1 << 18
