# SPDX-License-Identifier: Apache-2.0
"""Documents are executed: the README's commands and programs, the help texts' examples, the generated page."""

import inspect
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from fewbit import cli, registry
from processor import saturates

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
ONNX = (ROOT / "docs" / "onnx.md").read_text()
BIN = Path(sys.executable).parent
# The set-up commands are what runs these tests; a new clone is tried by hand before an issue is closed.
SET_UP = ("make ", "pip install", "source ")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A folder as a user has it after `make demo`."""
    folder = tmp_path_factory.mktemp("demo")
    assert run(["fewbit", "demo"], folder).returncode == 0
    return folder


def run(command, folder, **options):
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONWARNINGS": "ignore"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, **options)


def test_the_readme_has_commands_and_programs():
    assert len(blocks("bash")) >= 4 and len(blocks("python")) >= 4


def test_the_readmes_set_up_commands_are_the_two_of_the_makefile():
    block = next(block for block in blocks("bash") if "make " in block)
    assert [line.split("#")[0].strip() for line in block.splitlines()] == ["make demo", "make test"]
    makefile = (ROOT / "Makefile").read_text()
    assert "\ndemo: $(VENV)/.ready" in makefile and "\ntest: $(VENV)/.ready" in makefile
    assert "make test" in (ROOT / ".ci" / "run").read_text()


@pytest.fixture(scope="module")
def after_the_commands(demo):
    """The folder after the README's commands: programs use what they leave."""
    commands = [line for block in blocks("bash") for line in block.splitlines() if line and not line.startswith(SET_UP)]
    assert len(commands) >= 6
    for command in commands:
        result = run(["bash", "-c", command], demo)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return demo


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_the_readmes_commands_and_programs_run(after_the_commands, number):
    result = run([sys.executable, "-c", blocks("python")[number]], after_the_commands)
    assert result.returncode == 0, result.stderr


def test_the_readme_shows_what_is_printed(after_the_commands):
    """Numbers are left out: they are of the machine that trained the demo's network."""
    shown = blocks("text")[0]
    command = next(line for block in blocks("bash") for line in block.splitlines() if "/small.onnx" in line)
    assert shown.splitlines()[-1].startswith("in fewbit-demo/small.onnx;")
    result = run(["bash", "-c", f"{command} --overwrite"], after_the_commands)
    # Without VNNI the runtime's sums may be off, which is warned of.
    printed = [line for line in result.stdout.splitlines() if not (saturates() and line.startswith("warning:"))]
    assert re.sub(r"[\d.e-]*\d", "#", "\n".join(printed)) == re.sub(r"[\d.e-]*\d", "#", shown.strip()), result.stderr


def test_the_onnx_page_names_every_target_option_fact_and_preset():
    from dataclasses import fields

    from fewbit.backends.graph.executed import Executed
    from fewbit.backends.graph.targets import TARGETS
    from fewbit.engine.options import Options

    options = ONNX.partition("## Options")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", options, re.MULTILINE)) == {f.name for f in fields(Options)} - {"target"}
    targets = ONNX.partition("## Targets")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", targets, re.MULTILINE)) == set(TARGETS)
    assert all(f"`{field.name}`" in ONNX for field in fields(Executed))


PRESETS = re.findall(r"`(\w+)`", re.search(r"Presets that work for ONNX files: (.*)", ONNX).group(1))
MODES = re.findall(r"`(\w+)`", re.search(r"the modes (`int8_asym`.*)\.", ONNX).group(1))


@pytest.mark.parametrize("name", [*PRESETS, *MODES])
def test_the_presets_and_modes_of_the_onnx_page_work(demo, name):
    import fewbit

    model, data = demo / "fewbit-demo" / "model.onnx", demo / "fewbit-demo" / "npz"
    made = fewbit.quantize(model, data, preset=name) if name in PRESETS else fewbit.compress_weights(model, mode=name)
    assert len(made.SerializeToString()) < 0.5 * model.stat().st_size


def test_the_readme_counts_the_demos_presets():
    from fewbit.cli import _classifier

    words = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    assert f"quantized {words[len(_classifier._PRESETS)]} ways" in README


def test_the_readme_names_the_presets_that_need_data():
    from torch import nn

    from fewbit.engine.quantizer import ModelQuantizer
    from fewbit.schemes.presets import PRESETS

    sentence = re.search(r"Of the presets, (.*) need data", README).group(1)
    found = {name for name in PRESETS if ModelQuantizer(name).plan(nn.Linear(256, 256)).static}
    assert found == set(re.findall(r"`(\w+)`", sentence))


def test_the_readme_names_every_extra():
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    install = README.partition("## Install")[2]
    assert all(f"`{extra}`" in install for extra in extras if extra not in ("test", "bench"))


@pytest.mark.slow
@pytest.mark.parametrize("command", cli.commands())
def test_the_examples_of_the_help_text_run(demo, command):
    text = __import__(f"fewbit.cli.{command}", fromlist=["command"]).command.__doc__
    examples = re.findall(r"^\s+(fewbit .+)$", text.partition("Examples:")[2], re.MULTILINE)
    assert examples, f"`fewbit {command} --help` shows no example"
    for example in examples:
        result = run(["bash", "-c", example], demo)
        assert result.returncode == 0, f"{example}\n{result.stdout}\n{result.stderr}"
    assert "Examples" in run(["fewbit", command, "--help"], demo).stdout


def test_the_page_of_findings_is_up_to_date():
    made = runpy.run_path(str(ROOT / "docs" / "make_findings.py"))["text"]()
    assert (ROOT / "docs" / "findings.md").read_text() == made, "run `make docs`"


def test_the_readme_and_the_guide_name_every_format():
    guide = (ROOT / "docs" / "formats.md").read_text()
    for name in registry.names("formats"):
        assert f"`{name}`" in README and f"`{name}`" in guide


@pytest.mark.parametrize("name", registry.names("formats"))
def test_the_guide_names_every_option(name):
    guide = (ROOT / "docs" / "formats.md").read_text()
    section = guide.partition(f"## `{name}`")[2].partition("\n## ")[0]
    parameters = inspect.signature(registry.get("formats", name).read).parameters.values()
    options = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} - {"split", "task", "policy"}
    assert all(f"`{option}`" in section for option in options), options


def test_every_file_says_its_licence():
    for folder in ("src", "tests", "bench", "docs"):
        for file in (ROOT / folder).rglob("*.py"):
            assert file.read_text().startswith("# SPDX-License-Identifier: Apache-2.0"), file
