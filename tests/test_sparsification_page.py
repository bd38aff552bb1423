# SPDX-License-Identifier: Apache-2.0
"""What docs/sparsification.md shows runs as printed, on tiny models."""

import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from drawn_shapes import write_folder
from fewbit import registry
from onnx_graphs import model as graph
from onnx_graphs import random
from tiny_models import transformer
from word_tokenizer import make_tokenizer

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "sparsification.md").read_text()
BIN = Path(sys.executable).parent
NETWORK = """\
from torch import nn


def build():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 3),
    )
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    import onnx

    folder = tmp_path_factory.mktemp("page")
    wide = {"hidden_size": 32, "intermediate_size": 32, "head_dim": 8, "max_position_embeddings": 64}
    transformer("llama", **wide, vocab_size=96).save_pretrained(folder / "llama")
    make_tokenizer().save_pretrained(folder / "llama")
    rows = [{"prompt": f"w{10 + n} w{11 + n}", "answer": f"w{12 + n} w{13 + n}"} for n in range(40)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_folder(folder / "shapes", train=24, val=12)
    (folder / "cnn.py").write_text(NETWORK)
    layers = [random(32, 64), random(64, 64, seed=1), random(64, 8, seed=2)]
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w0"], ["a"]),
        onnx.helper.make_node("Relu", ["a"], ["b"]),
        onnx.helper.make_node("MatMul", ["b", "w1"], ["c"]),
        onnx.helper.make_node("Relu", ["c"], ["d"]),
        onnx.helper.make_node("MatMul", ["d", "w2"], ["y"]),
    ]
    made = graph(nodes, {"x": ["n", 32]}, {"y": ["n", 8]}, {f"w{n}": w for n, w in enumerate(layers)})
    onnx.save(made, folder / "model.onnx")
    (folder / "npz").mkdir()
    for number in range(24):
        np.savez(folder / "npz" / f"input{number:04}.npz", x=random(32, seed=number + 9))
    return folder


def run(command, place):
    more = {"PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    made = subprocess.run(command, cwd=place, env=os.environ | more, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, f"{command}\n{made.stdout}\n{made.stderr}"
    return made.stdout


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow
def test_the_commands_run(place):
    for line in (line for block in blocks("bash") for line in block.strip().splitlines()):
        assert run(["bash", "-c", line], place)
    for name in ("sparse", "trained", "halved"):
        assert {path.name for path in (place / name).iterdir()} >= {"deployment", "record.json", "recipe.yaml"}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_the_programs_run(place, number):
    assert run([sys.executable, "-c", blocks("python")[number]], place)


@pytest.mark.parametrize("kind", ["stages", "use_cases"])
def test_every_member_is_on_the_page(kind):
    assert all(f"`{name}`" in PAGE for name in registry.names(kind))


@pytest.mark.parametrize("stage", ["prune", "shrink", "train"])
def test_every_setting_of_a_stage_is_on_the_page(stage):
    line = next(line for line in PAGE.splitlines() if line.startswith(f"| `{stage}`"))
    known = {field.name for field in fields(registry.get("stages", stage).Settings)}
    assert known <= set(re.findall(r"`(\w+)`", line))


def test_links_lead_somewhere():
    assert all((ROOT / "docs" / link).exists() for link in re.findall(r"\]\(([\w-]+\.md)\)", PAGE))
