# SPDX-License-Identifier: Apache-2.0
"""Small models and data for the tests of sparsifying, of every kind that there are layouts for."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from word_tokenizer import make_tokenizer

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def classifier(classes: int = 3) -> nn.Module:
    """A small network of convolutions for pictures of any size."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1)]
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, classes)).eval()


def with_zeros(model: nn.Module) -> nn.Module:
    """The model with every second weight of its matrices at zero, but for the last one's."""
    weights = [each for each in model.parameters() if each.ndim > 1][:-1]
    for weight in weights:
        weight.data.view(-1)[::2] = 0
    return model


def encoder(folder: Path, head: str = "BertForSequenceClassification", **more: Any) -> Path:
    """A folder with a small encoder and its tokenizer."""
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(**SIZES, vocab_size=96, max_position_embeddings=32, **more)
    return _saved(getattr(transformers, head)(config), folder)


def decoder(folder: Path) -> Path:
    """A folder with a small language model and its tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, num_key_value_heads=2, vocab_size=96, max_position_embeddings=64)
    return _saved(LlamaForCausalLM(config), folder)


def _saved(model: Any, folder: Path) -> Path:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    make_tokenizer(start=True, ends=True).save_pretrained(folder)
    return folder


def rated(path: Path, count: int = 60) -> Path:
    """Texts and how they sound, as JSON lines or CSV."""
    rng, names = random.Random(0), ("negative", "neutral", "positive")
    rows = [(" ".join(f"w{rng.randrange(10, 60)}" for _ in range(8)), names[i % 3]) for i in range(count)]
    if path.suffix == ".csv":
        path.write_text("text,label\n" + "".join(f'"{text}","{label}"\n' for text, label in rows))
    else:
        path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
    return path


def pairs(path: Path, count: int = 60) -> Path:
    """Prompts and answers as JSON lines."""
    rows = [{"prompt": f"w{10 + i} w{11 + i}", "answer": f"w{12 + i} w{13 + i}"} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def graph(path: Path, side: int = 16, batch: str | int = "n") -> Path:
    """An ONNX classifier of pictures of one size: two convolutions, a mean, a matrix."""
    from onnx import TensorProto, helper, numpy_helper, save

    rng = np.random.default_rng(0)
    shapes = {"a": (8, 3, 3, 3), "b": (16, 8, 3, 3), "c": (16, 3)}
    weights = {name: (rng.normal(size=size) / np.sqrt(np.prod(size[1:]))) for name, size in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["input", "a"], ["h"], pads=[1] * 4),
        helper.make_node("Relu", ["h"], ["i"]),
        helper.make_node("Conv", ["i", "b"], ["j"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["j"], ["k"]),
        helper.make_node("GlobalAveragePool", ["k"], ["l"]),
        helper.make_node("Flatten", ["l"], ["m"]),
        helper.make_node("MatMul", ["m", "c"], ["scores"]),
    ]
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, [batch, 3, side, side])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, 3])],
        [numpy_helper.from_array(weight.astype(np.float32), name) for name, weight in weights.items()],
    )
    save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def arrays(folder: Path, count: int = 20, side: int = 16, **more: Any) -> Path:
    """A folder with one sample a file."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(count):
        values = {"input": rng.normal(size=(3, side, side)).astype(np.float32)}
        np.savez(folder / f"input{number:04}.npz", **values, **{name: make(number) for name, make in more.items()})
    return folder


def digest(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything in a folder: names, times of change and bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def zeros(model: nn.Module) -> float:
    """The share of zeros in all matrices."""
    weights = [each.weight for each in model.modules() if getattr(each, "weight", None) is not None]
    matrices = [weight for weight in weights if weight.ndim > 1]
    return sum(int((weight == 0).sum()) for weight in matrices) / sum(weight.numel() for weight in matrices)
