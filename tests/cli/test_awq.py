# SPDX-License-Identifier: Apache-2.0
"""`fewbit compress --algorithm awq` and `fewbit quantize`: channels are evened out, and the record says so."""

import json

import pytest
import torch

from fewbit import cli
from planted import planted, texts


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    planted("llama").save_pretrained("llama")
    torch.save([item["input_ids"] for item in texts(10)], "ids.pt")
    (tmp_path / "data.py").write_text(
        "import torch\n\ndef read():\n    return [{'input_ids': ids} for ids in torch.load('ids.pt')]\n"
    )

    def run(*arguments):
        capsys.readouterr()
        code = cli.run([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


W4 = ("--mode", "int4_sym", "--group-size", "16")


@pytest.mark.parametrize(
    ("line", "prepared", "settled"),
    [
        (("compress", "llama", *W4, "--algorithm", "awq"), "awq", "scale_search"),
        (("compress", "llama", *W4, "--algorithm", "awq+gptq"), "awq", "gptq"),
        (("quantize", "llama", "--preset", "w8a8_dynamic"), "smooth_quant", "scale_search"),
    ],
    ids=["awq", "awq and gptq", "smooth_quant"],
)
def test_the_record_names_what_was_scaled(run, line, prepared, settled):
    code, out, err = run(*line, "--data", "data.py:read", "-o", "out", "--json")
    assert code == 0, err
    said = json.loads(out)
    scaled = [line for line in said["lines"] if line["what"] == "scaled"]
    assert scaled and all(line["algorithm"] == prepared and line["error"] < line["error_unscaled"] for line in scaled)
    assert said["facts"]["preparing"]["kept"]
    assert settled in {line["algorithm"] for line in said["lines"] if line["what"] == "quantized"}


def test_without_data_it_is_refused(run, tmp_path):
    code, _, err = run("compress", "llama", *W4, "--algorithm", "awq", "-o", "out")
    assert code == 2 and "without data" in err and not (tmp_path / "out").exists()


@pytest.mark.parametrize("stages", ["gptq+awq", "awq+awq", "awq+gptq+rtn"])
def test_stages_out_of_order_or_twice_are_told_before_anything_is_opened(run, stages, monkeypatch):
    monkeypatch.setattr("fewbit.cli._choice.network", lambda *_: pytest.fail("the model was opened"))
    code, _, err = run("compress", "llama", *W4, "--algorithm", stages, "--data", "data.py:read", "-o", "out")
    assert code == 2 and stages in err and "awq+gptq" in err
