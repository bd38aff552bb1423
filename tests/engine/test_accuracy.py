# SPDX-License-Identifier: Apache-2.0
"""Accuracy control: as much in integers as the drop allows, judged by the user's own function."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper

import fewbit
from fewbit.cli import _summary
from fewbit.engine.nearness import nearness
from fewbit.errors import NothingQuantizedWarning, UsageError
from fewbit.record import Record
from onnx_graphs import model, random


def chain(widths=(64, 64, 64), spiky=False):
    """Convolutions in a row, large enough that integers pay; the middle one's input may have an outlier channel."""
    nodes, constants, before = [], {}, "x"
    for index, width in enumerate(widths):
        weight = random(width, 64, 3, 3, seed=index) / 24
        if spiky and index == 1:
            weight[0] *= 500  # one channel so large that the others have few codes left
        constants[f"w{index}"] = weight
        nodes.append(helper.make_node("Conv", [before, f"w{index}"], [f"c{index}"], name=f"conv{index}", pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{index}"], [f"r{index}"], name=f"relu{index}"))
        before = f"r{index}"
    return model(nodes, {"x": [1, 64, 12, 12]}, {before: None}, constants)


ITEMS = [{"x": random(1, 64, 12, 12, seed=seed)} for seed in range(10)]


def outputs(proto, items):
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return [session.run(None, item)[0] for item in items]


def nearness_to(float_model):
    wanted = outputs(float_model, ITEMS)

    def judge(proto, items):
        found = outputs(proto, list(items))
        return 1 - float(np.mean([np.square(a - b).sum() / np.square(a).sum() for a, b in zip(wanted, found)]))

    return judge


def facts_of(proto):
    return json.loads({entry.key: entry.value for entry in proto.metadata_props}["fewbit"])


def test_an_easy_model_is_quantized_whole():
    proto = chain()
    made = fewbit.quantize_with_accuracy_control(proto, ITEMS, ITEMS, nearness_to(proto), max_drop=0.05)
    facts = facts_of(made)
    assert facts["executed"]["integer"] == {"QLinearConv": 3} and facts["executed"]["floating"] == {}
    assert facts["accuracy"] >= facts["accuracy_wanted"] == pytest.approx(facts["accuracy_float"] - 0.05)


def test_what_costs_too_much_is_given_back_and_named(tmp_path):
    proto = chain(spiky=True)
    judge, out = nearness_to(proto), tmp_path / "small.onnx"
    free = fewbit.quantize(proto, ITEMS, advanced_parameters={"price": float("inf")})
    drop = (1 - judge(free, ITEMS)) / 20
    fewbit.quantize_with_accuracy_control(proto, ITEMS, ITEMS, judge, max_drop=drop, output=out)
    assert judge(onnx.load(out), ITEMS) >= 1 - drop
    record = json.loads((tmp_path / "small.onnx.record.json").read_text())
    kept = [line for line in record["lines"] if line["what"] == "kept-for-accuracy"]
    assert kept and all(line["bytes"] > 0 and "time_share" in line for line in kept)


def test_a_model_that_stays_in_float_is_warned_of(tmp_path):
    first = iter([1.0])
    with pytest.warns(NothingQuantizedWarning, match="every layer stays in float") as caught:
        fewbit.quantize_with_accuracy_control(
            chain(), ITEMS, ITEMS, lambda made, items: next(first, 0.0), output=tmp_path / "m.onnx",
            advanced_parameters={"price": 1e-12},
        )  # fmt: skip
    assert caught[0].filename == __file__
    record = Record.from_json((tmp_path / "m.onnx.record.json").read_text())
    assert record.lines[0]["what"] == "nothing-quantized" and "max_drop" in record.lines[0]["reason"]
    assert next(_summary.lines(record)).startswith("warning: every layer stays in float")


def test_without_a_function_the_float_model_is_the_judge():
    made = fewbit.quantize_with_accuracy_control(chain(), ITEMS, ITEMS, max_drop=0.5)
    assert facts_of(made)["accuracy_float"] == 1.0


def test_a_drop_relative_to_the_float_model():
    proto = chain()
    judge = nearness_to(proto)

    def hundredfold(made, items):
        return 100 * judge(made, items), ["details"]

    made = fewbit.quantize_with_accuracy_control(proto, ITEMS, ITEMS, hundredfold, max_drop=0.1, drop_type="relative")
    assert facts_of(made)["accuracy_wanted"] == pytest.approx(90)


@pytest.mark.parametrize("wrong", [{"max_drop": -1}, {"max_drop": True}, {"drop_type": "sideways"}, {"target": "tpu"}])
def test_what_cannot_be_asked_for(wrong):
    with pytest.raises(UsageError):
        fewbit.quantize_with_accuracy_control(chain(), ITEMS, ITEMS, **wrong)


@pytest.mark.parametrize("said", [float("nan"), float("inf"), None, "0.9", (), (None, 1), np.ones(3)])
def test_a_score_that_is_no_number(said):
    with pytest.raises(UsageError, match="for the float model") as caught:
        fewbit.quantize_with_accuracy_control(chain(), ITEMS, ITEMS, lambda made, items: said)
    assert "validation_fn returned" in caught.value.what and "finite number" in caught.value.expected


def test_a_score_that_is_no_number_for_a_quantized_model_only():
    said = iter([0.9, float("nan")])
    with pytest.raises(UsageError, match="returned nan for a quantized model"):
        fewbit.quantize_with_accuracy_control(chain(), ITEMS, ITEMS, lambda made, items: next(said))


@pytest.mark.parametrize("score", [np.float32(0.5), np.array(0.5), 1, True])
def test_scores_of_any_kind_of_number(score):
    made = fewbit.quantize_with_accuracy_control(chain(), ITEMS, ITEMS, lambda made, items: score)
    assert facts_of(made)["accuracy"] == float(score)


def test_modules_have_no_graph():
    torch = pytest.importorskip("torch")
    with pytest.raises(UsageError, match="PyTorch"):
        fewbit.quantize_with_accuracy_control(torch.nn.Linear(2, 2), ITEMS, ITEMS)


def test_answers_that_are_whole_numbers_count():
    found = nearness([[torch.tensor([1, 2, 3, 4])]], [[torch.tensor([1, 2, 3, 5])]])
    assert found["agreement"] == 0.75 and found["error"] == 0.25
