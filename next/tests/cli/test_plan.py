# SPDX-License-Identifier: Apache-2.0
"""`plan`: what would happen, and settings that make it happen."""

import json

import pytest
import yaml

import fewbit as package
from fewbit.record.schema import Record

pytest.importorskip("onnxruntime")


def test_the_table_and_every_layer(fewbit, tiny_onnx):
    code, out, _ = fewbit("plan", tiny_onnx, "--preset", "w8a16", "--ignore", "last")
    assert code == 0 and "2: 1 w8a16, 1 float" in out and "int8 per_channel" in out and "float  (ignored)" in out
    assert "8-bit weights only, for ONNX Runtime" in out and "smaller" in out
    assert "first" in fewbit("plan", tiny_onnx, "--preset", "w8a16", "-v")[1]
    code, out, _ = fewbit("plan", tiny_onnx, "--preset", "w8a16", "--json")
    assert [row["name"] for row in json.loads(out)["record"]["layers"]] == ["first", "last"]


def test_what_is_planned_is_what_quantize_does(fewbit, tiny_onnx, tmp_path):
    fewbit("plan", tiny_onnx, "--preset", "int8_wo", "--ignore", "last", "-o", "plan.yaml")
    settings = yaml.safe_load((tmp_path / "plan.yaml").read_text())
    assert settings == {"preset": "w8a16", "target": "onnxruntime", "ignore": ["last"]}
    code, _, err = fewbit("quantize", tiny_onnx, "--config", "plan.yaml", "-o", "a.onnx")
    assert code == 0, err
    record = Record.read("a.onnx")
    assert record.layers == [entry.row() for entry in package.plan(tiny_onnx, config="plan.yaml").layers]
    fewbit("quantize", tiny_onnx, "--preset", "w8a16", "--ignore", "last", "-o", "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    planned = package.plan(tiny_onnx, config="plan.yaml").facts["size"]["result"]
    assert planned == pytest.approx(record.size["result"], rel=0.1)


def test_one_line_a_table_and_html(tiny_onnx):
    plan = package.plan(tiny_onnx, preset="w8a16")
    assert repr(plan) == "Plan(2 layers: 2 w8a16, 0 float)" and isinstance(plan, package.Plan)
    assert "first" in str(plan) and plan._repr_html_().count("<tr>") == 3
    assert "<script>" not in plan._repr_html_()


def test_an_earlier_plan_is_replaced_only_if_asked(fewbit, tiny_onnx, tmp_path):
    words = ["plan", tiny_onnx, "--preset", "w8a16", "-o"]
    assert fewbit(*words, "p.yaml")[0] == 0
    code, _, err = fewbit(*words, "p.yaml")
    assert code == 2 and "--overwrite" in err and fewbit(*words, "p.yaml", "--overwrite")[0] == 0
    (tmp_path / "mine.yaml").write_text("mine: 1\n")
    code, _, err = fewbit(*words, "mine.yaml", "--overwrite")
    assert code == 2 and "not written by fewbit" in err and (tmp_path / "mine.yaml").read_text() == "mine: 1\n"
    assert fewbit(*words, "p.txt")[0] == 2


@pytest.mark.parametrize(("words", "code", "text"), [
    (["missing.onnx"], 2, "there is no model"),
    (["{model}", "--preset", "w8a16", "--ignore", "firts"], 2, "expected: first"),
    (["{model}", "--preset", "w8a16", "--ignore", "*"], 3, "nothing would be quantized"),
    (["{model}", "--preset", "w8a16", "--set", "sampels=3"], 2, "samples"),
    (["{model}", "--preset", "w8a16", "--group-size", "32"], 2, "--group-size"),
    (["{model}", "--preset", "w8a16", "--bits", "4.5"], 2, "option-later"),
])  # fmt: skip
def test_mistakes(fewbit, tiny_onnx, words, code, text):
    result, _, err = fewbit("plan", *[word.format(model=tiny_onnx) for word in words])
    assert result == code and text in err, err


def test_modules():
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    plan = package.plan(model, preset="w4a16", ignore=["2"])
    rows = [entry.row() for entry in plan.layers]
    assert [row["quantized"] for row in rows] == [True, False] and "1 w4a16, 1 float" in str(plan)
