# SPDX-License-Identifier: Apache-2.0
"""Rules of `.npz` samples, and defects of other tools, asked through the public verbs alone."""

from pathlib import Path

import numpy as np
import pytest

import fewbit
from fewbit import registry

onnx = pytest.importorskip("onnx")
FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def model(path, inputs, *, constants=(), version=9):
    """An ONNX file with these inputs; `constants` are initializers that old files list among them."""
    make = onnx.helper
    values = [make.make_tensor_value_info(*entry) for entry in inputs]
    values += [make.make_tensor_value_info(name, FLOAT, [1]) for name in constants]
    nodes = [make.make_node("Identity", [name], [f"{name}_out"]) for name, _, _ in inputs]
    outputs = [make.make_tensor_value_info(f"{name}_out", kind, shape) for name, kind, shape in inputs]
    stored = [make.make_tensor(name, FLOAT, [1], [0.0]) for name in constants]
    whole = make.make_model(make.make_graph(nodes, "g", values, outputs, stored))
    whole.ir_version = version
    onnx.save(whole, path)
    return path


@pytest.fixture
def pixels(tmp_path):
    return model(tmp_path / "model.onnx", [("pixels", FLOAT, ["N", 3, 8, 8])])


def samples(folder, *arrays):
    folder.mkdir()
    for number, named in enumerate(arrays):
        np.savez(folder / f"input{number}.npz", **named)
    return folder


def noise(*shape):
    return np.random.default_rng(0).random(shape, dtype=np.float32)


def test_rule_input2_comes_before_input10(tmp_path):
    samples(tmp_path / "data", *({"x": np.int64([n, n + 1])} for n in range(12)))
    assert [int(sample["x"][0]) for sample in fewbit.open_dataset(tmp_path / "data")] == list(range(12))


def test_rule_an_initializer_among_the_inputs_needs_no_array(tmp_path):
    old = model(tmp_path / "old.onnx", [("pixels", FLOAT, ["N", 3, 8, 8])], constants=["weight"], version=3)
    assert fewbit.check_dataset(samples(tmp_path / "data", {"pixels": noise(3, 8, 8)}), model=old).ok


def test_rule_dims_with_a_name_are_free_but_agree_within_a_sample(tmp_path):
    path = model(tmp_path / "m.onnx", [("ids", INT64, ["N", "S"]), ("mask", INT64, ["N", "S"])])
    first, second = np.arange(4), np.arange(7)
    fine = samples(tmp_path / "fine", {"ids": first, "mask": first + 1}, {"ids": second, "mask": second + 1})
    assert fewbit.check_dataset(fine, model=path).ok
    torn = samples(tmp_path / "torn", {"ids": first, "mask": second})
    assert dict(fewbit.check_dataset(torn, model=path).counts) == {"axis-inconsistent": 1}


@pytest.mark.parametrize("name", ["Pixels", "pixels:0", "input_0", "model/pixels"])
def test_rule_a_name_that_is_nearly_right_is_taken_with_a_warning(tmp_path, pixels, name):
    data = samples(tmp_path / "data", {name: noise(3, 8, 8)})
    report = fewbit.check_dataset(data, model=pixels)
    assert report.ok and "rename={" in report.warnings[0].fix
    assert list(fewbit.open_dataset(data, signature=pixels)[0]) == ["pixels"]


@pytest.mark.parametrize(
    ("array", "codes"),
    [
        (noise(1, 3, 8, 8), {"batch-dimension": 1}),
        (noise(8, 8, 3), {"input-layout": 1}),
        (noise(3, 9, 8), {"input-shape": 1}),
        (noise(3, 8, 8).astype(np.float64), {"dtype-narrowed": 1}),
        ((noise(3, 8, 8) * 255).astype(np.uint8), {"dtype-unscaled": 1}),
        (noise(3, 8, 8).astype(">f4"), {}),
        (np.asfortranarray(noise(3, 8, 8)), {}),
    ],
    ids=["batch of 1", "NHWC", "shape", "float64", "forgot /255", "big endian", "Fortran order"],
)
def test_rule_each_way_not_to_fit_has_a_name(tmp_path, pixels, array, codes):
    assert dict(fewbit.check_dataset(samples(tmp_path / "data", {"pixels": array}), model=pixels).counts) == codes


def test_rule_floats_are_never_made_ids(tmp_path):
    path = model(tmp_path / "m.onnx", [("ids", INT64, ["N", "S"])])
    report = fewbit.check_dataset(samples(tmp_path / "data", {"ids": noise(4)}), model=path)
    assert dict(report.counts) == {"dtype-refused": 1} and not report.ok


def test_defect_numpy_12759_objects_show_only_when_asked_for(tmp_path):
    data = samples(tmp_path / "data", {"fine": noise(2), "hidden": np.array([{}], dtype=object)})
    for quick in (True, False):
        report = fewbit.check_dataset(data, quick=quick)
        assert [finding.place.field for finding in report.errors] == ["hidden"]


def test_defect_a_message_that_asks_for_allow_pickle(tmp_path):
    texts = [
        code.fix + code.meaning
        for name in registry.names("formats")
        for code in registry.get("formats", name).CODES.values()
    ]
    texts += [file.read_text(encoding="utf-8") for file in Path(fewbit.__file__).parent.rglob("*.py")]
    assert not [text for text in texts if "allow_pickle=True" in text.replace(" ", "")]
