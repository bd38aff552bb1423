# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from PIL import Image

import fewbit
from fewbit.cli import _digits
from fewbit.data.check import DataCheck
from fewbit.errors import UsageError


@pytest.fixture
def pictures(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        pixels = np.random.default_rng(len(name) + ord(name[0])).integers(0, 255, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{name}.png")
    return tmp_path / "pictures"


def test_samples_are_shown_as_a_user_would_get_them(pictures):
    report = fewbit.check_dataset(pictures)
    assert [s["place"] for s in report.samples] == ["cat/cat.png, sample 0", "dog/dog.png, sample 1"]
    assert report.samples[0]["sample"] == "{image: uint8[16, 16, 3], label: 0}"


def test_pictures_beside_a_model_say_that_a_transform_is_needed(pictures, tmp_path):
    model = _digits.model(tmp_path / "model.onnx")
    report = fewbit.check_dataset(pictures, model=model)
    assert report.ok and report.counts["needs-transform"] == 1
    assert "pixels" in report.findings[-1].message and "transform_fn" in report.findings[-1].fix


def test_a_transformed_dataset_can_be_checked_against_the_model(pictures, tmp_path):
    model = _digits.model(tmp_path / "model.onnx")
    assert not fewbit.check_dataset(fewbit.Dataset(pictures, _digits.as_model_input), model=model).counts


def test_an_interrupted_check_keeps_what_it_found(tmp_path):
    class Interrupts(list):
        def __iter__(self):
            raise KeyboardInterrupt

        def __getitem__(self, index):
            raise KeyboardInterrupt

    check = DataCheck(Interrupts([1]))
    with pytest.raises(KeyboardInterrupt):
        check.run()
    assert not check.report.complete and not check.report.ok


def test_options_of_a_format_reach_it_and_others_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("text;label\nx;1\n")
    assert fewbit.check_dataset(tmp_path / "a.csv", delimiter=";").understood["columns"].keys() == {"text", "label"}
    with pytest.raises(UsageError, match="no option 'workers'"):
        fewbit.check_dataset(tmp_path / "a.csv", workers=2)


def test_a_limit_keeps_few_places_and_exact_counts(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n' + "bad\n" * 50)
    report = fewbit.check_dataset(tmp_path / "a.jsonl", limit=3)
    assert (len(report.errors), sum(report.counts.values())) == (3, 50)


def test_a_model_that_is_not_there_is_wrong_use(pictures):
    with pytest.raises(UsageError, match=r"no model file 'nope\.onnx'"):
        fewbit.check_dataset(pictures, model="nope.onnx")
    (pictures.parent / "w.pt").touch()
    with pytest.raises(UsageError, match="cannot tell the inputs") as caught:
        fewbit.check_dataset(pictures, model=pictures.parent / "w.pt")
    assert ".pt2" in caught.value.try_
