# SPDX-License-Identifier: Apache-2.0
"""Models on a GPU: pruned, trained with zeros and codes, written, and read back there and in ONNX Runtime."""

import json

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from fewbit.sparsity.deploying.samples import full_precision
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


def settings() -> tuple[str, ...]:
    backends = torch.backends
    return tuple(each.fp32_precision for each in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn))


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="older switches alone")
@pytest.mark.parametrize("apart", [False, True], ids=["as usual", "set apart"])
def test_products_have_all_digits_for_a_while(apart):
    """With the switches of before 2.9, and where these fail since newer ones were set apart."""
    conv, before = torch.backends.cudnn.conv, settings()
    try:
        if apart:
            conv.fp32_precision = "ieee"
        given = settings()
        with full_precision(torch.device("cuda")):
            assert "tf32" not in settings()
            if not apart:
                with torch.backends.cudnn.flags(enabled=False):  # which a model may do
                    pass
        assert settings() == given
        with pytest.raises(ZeroDivisionError), full_precision(torch.device("cuda")):
            1 / 0
        assert settings() == given
        with full_precision(torch.device("cpu")):
            assert settings() == given
    finally:
        conv.fp32_precision = before[1]
