# SPDX-License-Identifier: Apache-2.0
"""Models on a GPU: pruned, trained with zeros and codes, written, and read back there and in ONNX Runtime."""

import json

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from fewbit.sparsity.deploying.samples import answering, full_precision
from fewbit.sparsity.recipe import Recipe
from fewbit.sparsity.verb import sparsify

no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4),
    ).eval()  # fmt: skip


def loader() -> DataLoader:
    draw = torch.Generator().manual_seed(0)
    return DataLoader([(torch.randn(3, 16, 16, generator=draw), row % 4) for row in range(64)], batch_size=16)


RECIPES = {
    "one-shot": {"mode": "one-shot", "stages": [{"prune": {"sparsity": 0.5}}]},
    "one-shot in int8": {
        "mode": "one-shot",
        "stages": [{"prune": {"sparsity": 0.5}}, {"quantize": {"preset": "w8a8"}}],
    },
    "training-aware": {
        "mode": "training-aware",
        "stages": [{"train": {"final": 0.8, "epochs": 3, "quantize": "w8a8"}}],
    },
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=no_gpu)])
@pytest.mark.parametrize("name", RECIPES)
def test_what_was_made_is_read_back_where_it_was_made(name, device, tmp_path):
    recipe = Recipe.from_dict({"use_case": "image_classification", **RECIPES[name]})
    more = {"validation": loader(), "tensorboard": False} if name == "training-aware" else {}
    made = sparsify(
        network().to(device), loader(), mode=RECIPES[name]["mode"], recipe=recipe, output=tmp_path / "made", **more
    )
    checks = json.loads((made / "record.json").read_text())["facts"]["deployment"]["checks"]
    assert checks["PyTorch"]["largest"] == 0.0
    assert (made / "deployment" / "model.onnx").exists()


def test_samples_are_answered_with_all_digits_and_settings_stay():
    seen = []

    class Layer(nn.Linear):
        def forward(self, x):
            seen.append((torch.backends.cudnn.conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision))
            return super().forward(x)

    before = torch.backends.cudnn.conv.fp32_precision, torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        answering(Layer(4, 2))(((torch.ones(1, 4),), {}))
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before[1])
    assert seen == [("ieee", "ieee")]
    with pytest.raises(ZeroDivisionError), full_precision():
        1 / 0
    assert (torch.backends.cudnn.conv.fp32_precision, torch.get_float32_matmul_precision()) == before
