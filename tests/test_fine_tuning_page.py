# SPDX-License-Identifier: Apache-2.0
"""What docs/fine-tuning.md shows runs as printed, on a tiny model."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from drawn_shapes import write_folder
from fewbit import registry
from tiny_models import transformer
from word_tokenizer import make_tokenizer

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "fine-tuning.md").read_text()
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    wide = {"hidden_size": 32, "intermediate_size": 32, "head_dim": 8, "max_position_embeddings": 64}
    transformer("llama", **wide, vocab_size=96).save_pretrained(folder / "model")
    make_tokenizer().save_pretrained(folder / "model")
    rows = [{"prompt": f"w{10 + n} w{11 + n}", "answer": f"w{12 + n} w{13 + n}"} for n in range(40)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_folder(folder / "pictures", train=24, val=12)
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
        assert "loss" in run(["bash", "-c", line], place)
    for name in ("tuned", "adapted", "trained-in-four-bits"):
        files = {path.name for path in (place / name).iterdir()}
        assert files >= {"config.json", "metrics.jsonl", "plots", "record.json", "checkpoints"}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_the_programs_run(place, number):
    run([sys.executable, "-c", blocks("python")[number]], place)


@pytest.mark.slow
def test_the_processes_run(place):
    for line in blocks("console")[0].strip().splitlines():
        run(["bash", "-c", line.replace("torchrun", "torchrun --standalone")], place)
    shared, sharded = (
        json.loads((place / name / "record.json").read_text())["facts"] for name in ("shared", "sharded")
    )
    assert shared["processes"] == sharded["processes"] == 2
    assert [loss for _, loss in shared["loss"]] == pytest.approx([loss for _, loss in sharded["loss"]], rel=1e-4)


@pytest.mark.parametrize("kind", ["tasks", "methods"])
def test_every_member_is_on_the_page(kind):
    assert all(f"`{name}`" in PAGE for name in registry.names(kind))


def test_every_number_that_judges_is_on_the_page():
    for name in registry.names("tasks"):
        assert f"`{registry.get('tasks', name).METRIC.BEST[0]}`" in PAGE


def test_links_lead_somewhere():
    assert all((ROOT / "docs" / link).exists() for link in re.findall(r"\]\(([\w-]+\.md)\)", PAGE))


def test_every_setting_is_on_the_page():
    from dataclasses import fields

    from fewbit.tuning.options import Options

    settings = PAGE.partition("## Settings")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", settings.replace("`lora`, `dora`", "").replace("`qat`", ""))) == {
        "finetune",
        *(field.name for field in fields(Options)),
    }
