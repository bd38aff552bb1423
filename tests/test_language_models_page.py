# SPDX-License-Identifier: Apache-2.0
"""What docs/language-models.md shows runs as printed, on a tiny model."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_models import transformer
from word_tokenizer import make_tokenizer

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "language-models.md").read_text()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    tokenizer = make_tokenizer()
    words = [f"w{number}" for number in range(10, 96)]
    wide = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16, "max_position_embeddings": 512}
    transformer("llama", **wide, vocab_size=96).eval().save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    for number, name in enumerate(("texts", "other")):
        rows = [" ".join(words[(7 * i + j * j + number) % len(words)] for j in range(200)) for i in range(60)]
        (folder / f"{name}.jsonl").write_text("\n".join(json.dumps({"text": row}) for row in rows))
    return folder


def run(command, place):
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_the_page_runs(place):
    blocks = re.findall(r"```(bash|python)\n(.*?)```", PAGE, re.DOTALL)
    assert {kind for kind, _ in blocks} == {"bash", "python"}
    for kind, text in blocks:
        commands = [["-c", text]] if kind == "python" else [["-m", *line.split()] for line in text.strip().splitlines()]
        for command in commands:
            made = run([sys.executable, *command], place)
            assert made.returncode == 0, f"{command}\n{made.stdout}\n{made.stderr}"
    assert {path.name for path in place.iterdir()} >= {"small", "w4", "w3", "sums", "deployed"}
    assert {path.name for path in (place / "deployed").iterdir()} == {"compressed_tensors", "gptq"}


def test_every_format_is_on_the_page():
    from fewbit import registry

    assert all(f"`{name}`" in PAGE for name in registry.names("exporters"))
