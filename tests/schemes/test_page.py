# SPDX-License-Identifier: Apache-2.0
"""docs/schemes.md says what the code says."""

import inspect
import re
from pathlib import Path

import pytest

from fewbit import QuantizationSpec
from fewbit.numerics.blocks import Blocks
from fewbit.numerics.dtypes import Dtype
from fewbit.schemes.formats import FORMATS
from fewbit.schemes.modes import MODES
from fewbit.schemes.presets import PRESETS

PAGE = (Path(__file__).parents[2] / "docs" / "schemes.md").read_text()


def rows(section):
    part = re.split(r"\n##+ ", PAGE.partition(f"# {section}\n")[2])[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("| `")
    ]


def cells(spec):
    return "–" if spec is None else " ".join(f"{k}={v}" for k, v in spec.items())


def test_every_field_has_a_line():
    fields = set(inspect.signature(QuantizationSpec).parameters) - {"unknown"}
    assert {row[0].strip("`") for row in rows("Fields of a spec")} == fields


def test_every_preset_is_shown_as_it_is():
    expected = [
        [f"`{name}`", data["about"], cells(data.get("weight")), cells(data.get("input_tensors"))]
        for name, data in PRESETS.items()
    ]
    assert rows("Presets") == expected


def test_every_mode_is_shown_as_it_is():
    assert rows("Weight modes") == [[f"`{name}`", cells(data)] for name, data in MODES.items()]


def test_every_block_format_is_shown():
    shown = {name: row for row in rows("Types and block formats") for name in re.findall(r"`(\w+)`", row[0])}
    assert set(FORMATS) <= set(shown)
    for name, row in shown.items():
        grid = QuantizationSpec(name).grid()
        assert row[1] in grid.dtype.name and int(row[2]) == grid.group_size
        assert row[3][:4] in grid.scale_type.name


@pytest.mark.parametrize("row", rows("Which axis"), ids=lambda row: row[0])
def test_the_shapes_of_scales_are_as_shown(row):
    fields = re.findall(r'(\w+)=("\w+"|-?\d+|\[\d+, \d+\])', row[0])
    read = {'"': lambda v: v.strip('"'), "[": lambda v: [int(n) for n in v.strip("[]").split(",")]}
    spec = QuantizationSpec("int8", **{name: read.get(value[0], int)(value) for name, value in fields})
    shown = tuple(int(n) for n in re.search(r"\[(\d+), (\d+)\]", row[1]).groups())
    assert Blocks((64, 128), spec.grid().weight_block((64, 128))).counts == shown


def test_the_program_does_what_the_page_says_of_it(capsys):
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    left = {}
    exec(compile(program, "docs/schemes.md", "exec"), left)  # noqa: S102
    assert capsys.readouterr().out == 'layer_quant_config["*.fc1"] over global_quant_config\n'
    layer = left["config"].resolve("layers.0.fc1", ["Linear"]).quantization
    assert (layer.weight.dtype, layer.weight.group_size) == (Dtype.int4, 32)
    assert layer.input_tensors.is_dynamic
    assert left["config"].resolve("lm_head", ["Linear"]).quantization is None
