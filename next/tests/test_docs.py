# SPDX-License-Identifier: Apache-2.0
"""Documents are executed: every Python block and every command of README and docs, on the data of `fewbit demo`."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fewbit.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "docs" / "data.md", ROOT / "docs" / "quantization.md", ROOT / "docs" / "quality.md"]
SET_UP = ("make ", "pip ", "source ", "git ")


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def commands(page):
    lines = [line for block in (*blocks(page, "console"), *blocks(page, "bash")) for line in block.splitlines()]
    lines = [line.removeprefix("$ ").partition("#")[0].strip() for line in lines if line.startswith(("$ ", "fewbit "))]
    return [line for line in lines if line and not line.startswith(SET_UP)]


PYTHON = [
    pytest.param(page, number, id=f"{page.name}-{number}")
    for page in PAGES
    for number in range(len(blocks(page, "python")))
]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A folder as a user has it after `fewbit demo`."""
    folder = tmp_path_factory.mktemp("docs")
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert main(["demo", "-q"]) == 0
        for page in PAGES:
            for line in commands(page):
                code = main([*shlex.split(line)[1:], *(["--overwrite"] if " quantize " in f" {line} " else [])])
                assert code in (0, 1), line
                assert code == 0 or "damaged" in line, line
    finally:
        os.chdir(before)
    return folder


def test_there_is_something_to_execute():
    assert len(PYTHON) >= 5 and sum(len(commands(page)) for page in PAGES) >= 4


@pytest.mark.parametrize(("page", "number"), PYTHON)
def test_python_blocks_run(demo, page, number):
    result = subprocess.run(
        [sys.executable, "-c", blocks(page, "python")[number]], cwd=demo, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readme_shows_what_is_printed(demo, capsys, monkeypatch):
    """Figures may differ where the network was trained on another processor; the words may not."""
    monkeypatch.chdir(demo)
    command = next(line for line in commands(PAGES[0]) if " quantize " in f" {line} ")
    assert main([*shlex.split(command)[1:], "--overwrite"]) == 0
    printed, shown = capsys.readouterr().out, blocks(PAGES[0], "text")[0]
    assert re.sub(r"[\d.]*\d", "#", printed) == re.sub(r"[\d.]*\d", "#", shown)
    figures = [[float(figure) for figure in re.findall(r"[\d.]*\d", text)] for text in (printed, shown)]
    assert figures[0] == pytest.approx(figures[1], rel=0.05), printed


def test_the_readmes_first_screen_fits():
    text = PAGES[0].read_text()
    assert len(text.partition("## Start")[0].splitlines()) <= 40 and len(text.splitlines()) <= 150
    makefile, ci = (ROOT / "Makefile").read_text(), (ROOT.parent / ".ci" / "run").read_text()
    assert "\ndemo: $(VENV)/.ready" in makefile and "\ntest: $(VENV)/.ready" in makefile and "make -C next test" in ci
