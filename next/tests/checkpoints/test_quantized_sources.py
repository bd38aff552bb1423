# SPDX-License-Identifier: Apache-2.0
"""Quantized checkpoints are sources like others: their blocks compute with the decoded values."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import fewbit
from fewbit.backends import find_backend
from fewbit.backends.torch.weight_files import open_language_model
from fewbit.checkpoints import safetensors
from fewbit.checkpoints._base import LayerFormat
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.scales import ScaleType
from tiny_checkpoints import write_quantized
from tiny_language_models import save, tiny

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    base = tmp_path_factory.mktemp("sources")
    model = save(tiny("llama"), base / "model")
    grid = QuantizationGrid(
        Dtype.int4, QSchemeType.per_group, group_size=32, full_range=True, scale_type=ScaleType.bfloat16
    )
    values = write_quantized(model, base / "own", safetensors.CHECKPOINT, LayerFormat(grid))
    expected = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    expected.load_state_dict(values, strict=False)
    return base, expected


@pytest.mark.parametrize("name", ["safetensors", "compressed-tensors", "gptq", "awq", "gguf"])
def test_blocks_compute_with_decoded_weights(source, tmp_path, name):
    base, expected = source
    path = fewbit.export(base / "own", tmp_path / "out", format=name)
    path = next(path.glob("*.gguf"), path)
    backend = find_backend(path)
    assert backend.is_language_model(path)
    info = backend.inspect(path)
    assert info.quantized and info.vocabulary == 320 and info.tokenizer
    layers = backend.linear_layers(path)
    assert len([layer for layer in layers if layer.role != "head"]) == 14 and layers[0].shape == (64, 64)
    model = open_language_model(path, device=torch.device("cpu"))
    batch = {"input_ids": torch.arange(1, 13).reshape(1, 12)}
    (hidden,), calls = model.first_inputs([batch])
    with torch.no_grad():
        for index in range(2):
            block = model.load_block(index)
            hidden = calls[index][0](block, hidden)
        logits = model.logits(hidden, batch)
        wanted = expected(**batch).logits
    assert np.allclose(logits.numpy(), wanted.numpy(), atol=2e-4)
