# SPDX-License-Identifier: Apache-2.0
"""`check DATA --model M`, and whether a dataset suits calibration."""

import numpy as np
import pytest

from fewbit.data.inputs import ISSUES, advise, check_inputs
from fewbit.data.types import DataReport, Location, Severity
from fewbit.errors import UsageError, render
from fewbit.model_info import ModelInfo, TensorInfo
from item_source import DAMAGED
from item_source import item_dataset as data

X = ModelInfo("m.onnx", "ONNX", "onnx", inputs=(TensorInfo("x", "float32", ("batch", 3)),))


def good(number=0):
    return {"x": np.full(3, number, np.float32)}


def test_every_mismatch_at_its_sample():
    report = DataReport(complete=True, facts={"samples": 4})
    samples = [good(), {"x": np.ones(4, np.float32)}, {"X": np.ones(3, np.float32)}, {"x": np.ones((3, 1), np.int64)}]
    assert check_inputs(data(samples), X, report) == 2
    found = {(issue.code, issue.location.file) for issue in report.issues}
    assert found == {
        ("input-shape", "1.npz"),
        ("input-renamed", "2.npz"),
        ("input-shape", "3.npz"),
        ("dtype-checked", "3.npz"),
    }
    assert report.facts["fitting"] == 2 and not report.ok
    assert all(issue.location.field == "x" for issue in report.issues)


def test_nothing_that_fits_is_an_error_of_its_own():
    report = DataReport(complete=True)
    assert check_inputs(data([{"a": np.ones(7)}] * 3), X, report) == 0
    assert report.counts["input-missing"] == 3 and report.counts["no-sample-fits"] == 1 and not report.ok
    empty = DataReport(complete=True)
    assert check_inputs(data([]), X, empty) == 0 and not empty.ok


def test_fewer_samples_than_a_fixed_batch():
    fixed = ModelInfo("m", "ONNX", "onnx", inputs=(TensorInfo("x", "float32", (8, 3)),))
    report = DataReport(complete=True)
    check_inputs(data([good()] * 5), fixed, report)
    assert report.counts == {"no-sample-fits": 1} and "batches of 8" in report.issues[0].message


def test_damaged_samples_are_reported_once():
    report = DataReport(complete=True)
    report.add(DAMAGED, "cut short", Location("0.npz", index=0))
    assert check_inputs(data([None, good(), None]), X, report) == 1
    assert report.counts == {"test-damaged": 2}


def test_what_is_applied_is_recorded_and_contradictions_are_usage_errors():
    info = ModelInfo("m", "ONNX", "onnx", inputs=(TensorInfo("x", "float32", ("batch", 3, 8, 8)),))
    images = data([{"image": np.zeros((8, 8, 3), np.uint8)}])
    with pytest.raises(UsageError, match="9 x 9"):
        check_inputs(images, info, DataReport(complete=True), {"image_size": (9, 9)})
    report = DataReport(complete=True)
    assert check_inputs(images, info, report, {}) == 1 and report.ok
    assert report.facts["inputs"] == "8 x 8 (center crop); RGB 0..1, NCHW (model input shape)"
    assert report.facts["preprocessing"]["image_size"] == (8, 8)


def test_a_missing_tokenizer_is_an_issue():
    info = ModelInfo("m.onnx", "ONNX", "onnx", inputs=(TensorInfo("input_ids", "int64", ("batch", "seq")),))
    report = DataReport(complete=True)
    assert check_inputs(data([{"text": "a"}]), info, report) == 0
    assert report.counts == {"preprocessing": 1, "no-sample-fits": 1}


def test_issue_types_are_declared_once_and_their_hints_render():
    codes = [kind.code for kind in ISSUES]
    assert len(codes) == len(set(codes))
    for kind in ISSUES:
        text = render(kind.hint, "cli")
        assert text and "{" not in text, kind.code
        assert kind.fix == "", "check --fix does not know the model"
        if kind.severity is not Severity.ERROR:
            assert "drop" not in kind.actions, "a word for all must not drop samples for a warning"


def advised(items, strata=None, **options):
    report = DataReport(complete=True)
    facts = {"classes": options.pop("classes")} if "classes" in options else {}
    sentence = advise(data(items, strata=strata, **facts), report, **options)
    return sentence, report


def test_enough_different_samples_are_fine():
    sentence, report = advised([good(number) for number in range(400)])
    assert sentence == "300 of 400 samples would be drawn, no duplicates" and not report.issues
    assert report.facts["calibration"]["sentence"] == sentence


def test_few_samples():
    sentence, report = advised([good(number) for number in range(20)])
    assert sentence.startswith("20 of 20 samples") and report.counts == {"calibration-few-samples": 1}


@pytest.mark.parametrize("known", [True, False])
def test_few_classes(known):
    items = [good(number) | {"label": number % 2} for number in range(200)]
    names = ["a", "b", "c"]
    strata = [names[item["label"]] for item in items] if known else None
    sentence, report = advised(items, strata, classes=names)
    assert "2 of 3 classes covered" in sentence and report.counts == {"calibration-few-classes": 1}
    assert "none of c" in report.issues[0].message
    labels = tuple(f"class{number}" for number in range(1000))
    sentence, _ = advised(items, strata, classes=names[:2], info=ModelInfo("m", "ONNX", "onnx", labels=labels))
    assert "2 of 1,000 classes covered" in sentence


def test_duplicates_and_overlap():
    items = [good(number % 100) for number in range(200)]
    validation = data([good(number) for number in range(95, 120)])
    sentence, report = advised(items, validation=validation)
    assert "100 duplicates" in sentence and "5 in the validation set" in sentence
    assert report.counts == {"calibration-duplicates": 1, "calibration-overlap": 1}
    assert report.affected["calibration-overlap"] == 5


def test_text_lengths():
    texts = [{"text": f"{number} " * 10} for number in range(150)]
    sentence, report = advised(texts)
    assert "texts of 20 to 40 characters" in sentence
    assert set(report.counts) == {"calibration-few-samples", "calibration-short-texts"}
    _, report = advised([{"text": f"{number} " * 1000} for number in range(150)])
    assert not report.issues


def test_damaged_samples_do_not_stop_the_advice():
    sentence, _ = advised([None, good()])
    assert sentence.startswith("1 of 2 samples")
