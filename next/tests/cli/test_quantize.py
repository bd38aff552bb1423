# SPDX-License-Identifier: Apache-2.0
"""The slice: an ONNX model through all layers."""

import hashlib
import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import fewbit as package
from fewbit.errors import FewbitWarning
from fewbit.record.schema import Record, json_schema
from item_source import item_dataset

onnxruntime = pytest.importorskip("onnxruntime")


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_run_from_command_line_to_measured_result(fewbit, tiny_onnx, npz_folder):
    before = digest(tiny_onnx)
    code, out, err = fewbit("quantize", tiny_onnx, "--data", npz_folder, "--preset", "w8a16", "-o", "small.onnx")
    assert code == 0, err
    assert out.startswith("OK  ") and "x smaller" in out and "held-out samples" in out and "agreement" in out
    assert "fewbit 1" in err.splitlines()[0] and "seed 0" in err and "8-bit weights only" in err
    assert digest(tiny_onnx) == before
    record = Record.read("small.onnx")
    jsonschema.validate(record.to_dict(), json_schema())
    assert record.verdict == "ok" and record.quality["samples"] == 32 and record.data["samples"] == 100
    assert [layer["name"] for layer in record.layers] == ["first", "last"]
    assert not Path("README.md").exists() and not list(Path().glob("small*.md")), "a single file has no model card"
    assert {phase["name"] for phase in record.phases} <= {"load", "quantize", "measure", "write", "verify"}


def test_the_integers_are_those_of_an_independent_formula(fewbit, tiny_onnx, tmp_path):
    onnx = pytest.importorskip("onnx")
    fewbit("quantize", tiny_onnx, "--preset", "w8a16", "-o", "small.onnx")
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tiny_onnx).graph.initializer}
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "small.onnx").graph.initializer}
    for name, weight in weights.items():
        scale = np.abs(weight).max(0) / 127.5
        np.testing.assert_allclose(stored[f"{name}_scale"], scale, rtol=1e-6)
        assert np.abs(stored[f"{name}_quantized"] - weight / scale).max() <= 0.5 + 1e-4
        assert stored[f"{name}_quantized"].dtype == np.int8


def test_the_file_computes_what_the_record_says(fewbit, tiny_onnx, npz_folder, tmp_path):
    fewbit("quantize", tiny_onnx, "--data", npz_folder, "--preset", "w8a16", "-o", "small.onnx")
    sessions = [onnxruntime.InferenceSession(str(path)) for path in (tiny_onnx, tmp_path / "small.onnx")]
    x = np.stack([np.load(npz_folder / f"s{i}.npz")["x"] for i in range(100)])
    wanted, result = (session.run(None, {"x": x})[0] for session in sessions)
    sqnr = 10 * np.log10(np.square(wanted).sum() / np.square(wanted - result).sum())
    assert sqnr == pytest.approx(Record.read("small.onnx").quality["sqnr_db"], abs=2)


def test_without_data_nothing_is_measured_and_the_screen_says_how(fewbit, tiny_onnx):
    code, out, _ = fewbit("quantize", tiny_onnx, "--preset", "w8a16", "-o", "small.onnx")
    assert code == 0 and out.startswith("NOT MEASURED") and "--data DATA" in out


def test_a_broken_result_is_red_and_exits_with_one(fewbit, tiny_onnx, npz_folder, monkeypatch):
    from fewbit.quantization.weight_only import quantize_symmetric as real

    def wrong(weight, bits, axis):
        integers, scales = real(weight, bits, axis)
        return integers[:, ::-1].copy(), scales

    monkeypatch.setattr("fewbit.quantization.weight_only.quantize_symmetric", wrong)
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, out, _ = fewbit("quantize", tiny_onnx, "--data", npz_folder, "--preset", "w8a16", "-o", "small.onnx")
    assert code == 1 and out.startswith("\x1b[1;31mBROKEN\x1b[0m")
    assert Record.read("small.onnx").verdict == "broken" and "next" in out


def test_json_is_one_document_for_success_and_error(fewbit, tiny_onnx, npz_folder):
    code, out, _ = fewbit("quantize", tiny_onnx, "--data", npz_folder, "--preset", "w8a16", "-o", "a.onnx", "--json")
    document = json.loads(out)
    assert code == document["exit_code"] == 0 and document["verdict"] == "ok" and document["output"] == "a.onnx"
    code, out, _ = fewbit("quantize", tiny_onnx, "--preset", "w8a16", "-o", "a.onnx", "--json")
    document = json.loads(out)
    assert code == document["exit_code"] == 2 and document["error"]["code"] == "output-exists"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["missing.onnx"], 2, "there is no model"),
        (["{model}", "--preset", "q4"], 2, "[preset-"),
        (["{model}", "--preset", "w8a16", "--ignore", "firts"], 2, "expected: first"),
        (["{model}", "--preset", "w8a16", "--ignore", "*"], 3, "nothing would be quantized"),
        (["{model}", "--preset", "w8a16", "--data", "nowhere"], 3, "no file or folder"),
        (["{model}", "--preset", "w8a16", "--target", "onnxruntme"], 2, "onnxruntime"),
    ],
)
def test_mistakes_are_typed_and_leave_nothing(fewbit, tiny_onnx, tmp_path, words, code, text):
    before = sorted(tmp_path.iterdir())
    found, _, err = fewbit("quantize", *[word.format(model=tiny_onnx) for word in words])
    assert found == code and text in err, err
    assert sorted(tmp_path.iterdir()) == before


def test_python_gives_the_kind_of_object_that_came_in(tiny_onnx, npz_folder):
    onnx = pytest.importorskip("onnx")
    proto = onnx.load(tiny_onnx)
    content = proto.SerializeToString()
    result, record = package.quantize(proto, str(npz_folder), preset="w8a16", return_record=True)
    assert type(result) is type(proto) and proto.SerializeToString() == content
    assert record.verdict == "ok" and len(repr(record)) <= 120


def test_the_same_bytes_twice(fewbit, tiny_onnx, npz_folder, tmp_path):
    for name in ("a", "b"):
        fewbit("quantize", tiny_onnx, "--data", npz_folder, "--preset", "w8a16", "-o", f"{name}.onnx")
    assert digest(tmp_path / "a.onnx") == digest(tmp_path / "b.onnx")


def test_a_model_that_can_only_be_inspected_is_a_typed_error(fewbit, tmp_path):
    (tmp_path / "model.xml").write_text("<net/>")
    code, _, err = fewbit("quantize", "model.xml", "--preset", "w8a16")
    assert code == 3 and "not loaded yet" in err and "backend-not-built" in err


def test_separate_validation_data(fewbit, tiny_onnx, npz_folder, tmp_path):
    (tmp_path / "other").mkdir()
    for index in range(20):
        np.savez(tmp_path / "other" / f"{index}.npz", x=np.random.default_rng(index).normal(size=64).astype(np.float32))
    words = ["quantize", tiny_onnx, "--preset", "w8a16", "--validation", "other", "-o", "a.onnx"]
    for more, samples in ((["--data", npz_folder], 100), (["--overwrite"], 20)):
        code, out, err = fewbit(*words, *more)
        assert code == 0 and "20 held-out samples" in out and "other: 20 of 20 samples to measure" in err, err
        record = Record.read("a.onnx")
        assert record.data["samples"] == samples and record.data["validation"]["samples"] == 20


def test_a_configuration_repeats_the_run(fewbit, tiny_onnx, npz_folder, tmp_path):
    words = ["quantize", tiny_onnx, "--data", npz_folder]
    assert fewbit(*words, "--preset", "w8a16", "--samples", 64, "--ignore", "last", "-o", "a.onnx")[0] == 0
    assert fewbit(*words, "--config", "a.config.yaml", "-o", "b.onnx")[0] == 0
    assert digest(tmp_path / "a.onnx") == digest(tmp_path / "b.onnx")
    for name in ("config.yaml", "preprocessing.json"):
        assert (tmp_path / f"a.{name}").read_bytes() == (tmp_path / f"b.{name}").read_bytes()
    code, _, err = fewbit(
        *words, "--config", "a.config.yaml", "--set", "ignore=[first]", "--set", "seed=3", "-o", "c.onnx"
    )
    assert code == 0, err
    record = Record.read("c.onnx")
    assert record.settings["ignore"] == ["first"] and record.data["seed"] == 3
    code, _, err = fewbit(*words, "--config", "a.config.yaml", "--samples", 32, "-o", "d.onnx")
    assert code == 0 and Record.read("d.onnx").settings["samples"] == 32, "options win"
    code, _, err = fewbit(*words, "--set", "sampels=3", "--set", "presett=x")
    assert code == 2 and "did you mean 'samples'?" in err and "did you mean 'preset'" in err
    code, _, err = fewbit("quantize", tiny_onnx, "--config", "a.config.yaml", "-o", "e.onnx")
    assert code == 2 and "--samples has no effect without --data" in err
    result = package.quantize(str(tiny_onnx), config={"preset": "w8a16", "output": "f.onnx"})
    assert str(result) == "f.onnx"


def test_nothing_to_resume_is_said(fewbit, tiny_onnx, tmp_path):
    words = ["quantize", tiny_onnx, "--preset", "w8a16", "-o", "a.onnx"]
    for more, shown in (([], True), (["--no-resume", "--overwrite"], False)):
        (tmp_path / "a.onnx.partial").mkdir()
        (tmp_path / "a.onnx.partial" / "stale.json").write_text("{}")
        code, _, err = fewbit(*words, *more)
        assert code == 0 and ("it starts again" in err) == shown, err
        assert not (tmp_path / "stale.json").exists()


@pytest.mark.parametrize("flag", ["bits", "max-drop", "metric", "kv-cache"])
def test_options_of_a_later_version_are_refused(fewbit, tiny_onnx, flag):
    value = {"kv-cache": "fp8", "bits": "4.5", "max-drop": "1%"}.get(flag, "x")
    code, _, err = fewbit("quantize", tiny_onnx, "--preset", "w8a16", f"--{flag}", value)
    assert code == 2 and f"quantize has no --{flag} yet" in err and "fewbit 1.0" in err
    code, _, err = fewbit("quantize", tiny_onnx, "--preset", "w8a16", "--device", "cuda")
    assert code == 2 and "run on the CPU" in err


def test_few_samples_to_calibrate_with_are_a_loud_warning(fewbit, tiny_onnx, npz_folder, tmp_path, monkeypatch):
    from fewbit.targets import _base

    class Calibrated:
        """A preset that needs calibration data, until one is built."""

        needs_data = True

        def __init__(self, name, real=_base.parse_preset):
            self.__dict__.update({"real": real(name)})

        def __getattr__(self, name):
            return getattr(self.__dict__["real"], name)

    words = ["quantize", tiny_onnx, "--data", npz_folder, "--preset", "w8a16", "--samples", 20]
    assert "warning" not in fewbit(*words, "-o", "a.onnx")[2], "weights only: nothing is calibrated"
    monkeypatch.setattr(_base, "parse_preset", Calibrated)
    code, out, err = fewbit(*words, "-o", "b.onnx")
    assert code == 0 and "warning: 20 samples are few to calibrate with" in err and "20 to calibrate" in err
    assert "1 warning" in out and Record.read("b.onnx").warnings[0]["code"] == "calibration-few-samples"
    names = [f"class{index}" for index in range(50)]
    samples = [{"x": np.full(64, index, np.float32)} for index in range(100)]
    labelled = item_dataset(samples, strata=names * 2, classes=names)
    with pytest.warns(FewbitWarning) as caught:
        package.quantize(str(tiny_onnx), labelled, preset="w8a16", samples=40, progress=False)
    assert [str(warning.message.code) for warning in caught] == ["calibration-few-classes"]
    assert "of 50 classes" in str(caught[0].message)


def test_verbose_shows_every_layer_and_the_settings(fewbit, tiny_onnx):
    _, out, _ = fewbit("quantize", tiny_onnx, "--preset", "w8a16", "--ignore", "last", "-v")
    assert "  first  MatMul        w8a16\n" in out and "  last   MatMul        float  ignored" in out
    assert "  preset: w8a16" in out


def test_samples_left_out_while_reading_are_named(fewbit, tiny_onnx, npz_folder, tmp_path):
    """One damaged held-out sample: a warning, its name in the record."""
    for file in sorted(npz_folder.glob("*.npz")):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 0xFF
        file.write_bytes(bytes(content))
        break
    code, _, err = fewbit(
        "quantize", tiny_onnx, "--data", npz_folder, "--validation", npz_folder, "--preset", "w8a16",
        "--on-error", "drop", "-o", tmp_path / "a.onnx",
    )  # fmt: skip
    record = json.loads((tmp_path / "a.record.json").read_text())
    assert code == 0, err
    assert "1 damaged sample left out" in err and len(record["data"]["dropped"]) == 1
