# SPDX-License-Identifier: Apache-2.0
"""The demo's network: a small convolutional classifier of digits, trained on the spot in a second or two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewbit import registry
from fewbit.cli import _digits
from fewbit.errors import require

SOURCE = """\
import torch
from torch import nn


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 32, 3, padding=1)
        self.hidden = nn.Linear(32 * 16, 256)
        self.scores = nn.Linear(256, 10)

    def forward(self, pixels):
        image = pixels.reshape(-1, 1, 8, 8)
        features = nn.functional.max_pool2d(self.conv(image).relu(), 2)
        return self.scores(self.hidden(features.flatten(1)).relu())


def build():
    return Digits()
"""

_TRAIN = 1200
_PRESETS = ("w8a8", "w8a8_dynamic", "fp8", "w4a16", "mxfp4", "nvfp4", "w2a16")


def make(folder: Path) -> tuple[Any, Any, Any]:
    """Write `model.py` and `model.safetensors`; return the network and the held-out pixels and labels."""
    torch = require("torch", extra="torch", purpose="the demo's network")
    save_file = require("safetensors.torch", extra="torch", purpose="the demo's weights").save_file
    (folder / "model.py").write_text(SOURCE)
    pixels, labels = (torch.from_numpy(array) for array in _digits.load())
    pixels = pixels.reshape(-1, 64)
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers are not ours to use up
        torch.manual_seed(0)
        network = registry.load_reference(f"{folder / 'model.py'}:build")()
        _train(torch, network, pixels[:_TRAIN], labels[:_TRAIN])
    save_file(network.state_dict(), folder / "model.safetensors")
    return network.eval(), pixels[_TRAIN:], labels[_TRAIN:]


def quantized(network: Any, pixels: Any, labels: Any) -> list[dict[str, Any]]:
    """The network under a few presets: bytes, accuracy on held-out digits, how often it agrees with the float one."""
    import torch

    from fewbit.engine.quantizer import ModelQuantizer
    from fewbit.engine.run import view_of

    calibration = [pixels[i : i + 16] for i in range(0, 96, 16)]
    with torch.no_grad():
        reference = network(pixels).argmax(1)
        rows = [_row("float32", view_of(network).size(), reference, reference, labels)]
        for preset in _PRESETS:
            quantizer = ModelQuantizer(preset)
            small = quantizer.freeze(quantizer.quantize_model(network, calibration), inplace=True)
            rows.append(_row(preset, quantizer.record.facts["bytes_after"], small(pixels).argmax(1), reference, labels))
    return rows


def _row(name: str, size: int, answers: Any, reference: Any, labels: Any) -> dict[str, Any]:
    accuracy, agreement = ((answers == other).float().mean().item() for other in (labels, reference))
    return {"preset": name, "bytes": size, "accuracy": round(accuracy, 4), "agreement": round(agreement, 4)}


def _train(torch: Any, network: Any, pixels: Any, labels: Any) -> None:
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    for _ in range(12):
        for part in torch.randperm(len(pixels)).split(64):
            loss = torch.nn.functional.cross_entropy(network(pixels[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
