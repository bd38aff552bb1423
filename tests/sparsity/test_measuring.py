# SPDX-License-Identifier: Apache-2.0
"""Numbers that are measured agree with a second way to them, and their intervals with textbook ones."""

import math

import numpy as np
import pytest
import torch

import sparsity_jobs as jobs
import tuning_runs
from fewbit.data.dataset import Dataset
from fewbit.engine.confidence import share
from fewbit.sparsity.intervals import estimates
from fewbit.sparsity.measuring import measure
from fewbit.tuning.tasks import image_classification, object_detection, question_answering, segmentation


def _right(model):
    rows = jobs.pictures(50, seed=1)
    x = torch.tensor(np.stack([row["pixel_values"] for row in rows]))
    labels = torch.tensor([row["labels"] for row in rows])
    with torch.no_grad():
        return (model(x).argmax(-1) == labels).double().numpy()


def test_a_module_is_judged_at_its_task():
    dense = jobs.network()
    job = jobs.job(dense)
    sparse = jobs.pruned(dense)
    before = {name: tensor.clone() for name, tensor in sparse.state_dict().items()}
    found = measure(sparse, job)
    right = _right(sparse)
    wanted = share(right, np.ones(50))
    assert 0.5 < right.mean() < 1
    assert found["metric"] == {"name": "accuracy", **wanted.to_dict(), "better": "max"}
    assert (found["samples"], found["on"]) == (50, "validation")
    assert found["sparsity"]["layers"]["conv"] == {"zeros": 864, "elements": 1728, "share": 0.5, "shape": [64, 3, 3, 3]}
    assert found["sparsity"]["share"] == 864 / 1920
    assert found["bytes"]["raw"] == 4 * (1728 + 64 + 192 + 3) > found["bytes"]["compact"]
    assert found["agreement"]["kind"] == "classes" and found["agreement"]["samples"] == 20
    assert all(torch.equal(tensor, before[name]) for name, tensor in sparse.state_dict().items())
    assert measure(dense, job)["agreement"] is None


def test_without_anything_kept_aside_it_is_said():
    dense = jobs.network()
    job = jobs.job(dense, validation=False)
    found = measure(dense, job)
    assert found["on"] == "data" and found["samples"] == 60
    assert [line["what"] for line in job.record.lines] == ["judged-by-data"]


@pytest.mark.parametrize("batch", ["n", 1, 4])
def test_a_graph_is_judged_like_the_module(batch):
    dense = jobs.graph(batch=batch)
    job = jobs.job(dense)
    found, wanted = measure(dense, job), measure(jobs.network(), jobs.job(jobs.network()))
    assert found["metric"] == wanted["metric"] and found["samples"] == 50
    assert found["numbers"]["loss"]["value"] == pytest.approx(wanted["numbers"]["loss"]["value"], rel=1e-5)
    assert found["sparsity"]["elements"] == 1920
    assert found["bytes"]["raw"] == wanted["bytes"]["raw"]


@pytest.mark.parametrize("kind", ["module", "graph"])
def test_without_labels_the_dense_model_says_what_is_right(kind):
    dense = jobs.network() if kind == "module" else jobs.graph()
    job = jobs.job(dense, labelled=False)
    other = jobs.network(3) if kind == "module" else jobs.graph(3)
    found = measure(other, job)
    assert (found["metric"]["name"], found["on"], found["samples"]) == ("agreement", "calibration", 20)
    assert 0 < found["metric"]["low"] < found["metric"]["value"] <= found["metric"]["high"] <= 1
    assert measure(dense, job)["metric"]["value"] == 1.0


def test_a_graph_of_a_fixed_size_is_compared_in_whole_batches():
    dense = jobs.graph(batch=4)
    job = jobs.job(dense, labelled=False)
    job.samples = 10
    found = measure(jobs.graph(3, batch=4), job)
    assert found["agreement"]["samples"] == 8 and not job.record.lines


def test_perplexity_is_that_of_all_tokens():
    model = tuning_runs.language_model()
    job = jobs.job(model)
    job.task, job.metric, job.data, job.validation, job.calibration = "causal_lm", "perplexity", *(None,) * 3
    job.data, job.validation = tuning_runs.texts(), tuning_runs.texts(10, seed=1)
    found = measure(model, job)
    losses, counts = [], []
    for sample in job.validation:
        ids, labels = torch.tensor([sample["input_ids"]]), torch.tensor(sample["labels"])[1:]
        with torch.no_grad():
            logits = model(ids).logits[0, :-1]
        known = labels != -100
        losses.append(float(torch.nn.functional.cross_entropy(logits[known].double(), labels[known], reduction="sum")))
        counts.append(int(known.sum()))
    assert found["metric"]["value"] == pytest.approx(math.exp(sum(losses) / sum(counts)), rel=1e-5)
    assert found["metric"]["low"] < found["metric"]["value"] < found["metric"]["high"]
    assert found["samples"] == 10 and "token_accuracy" in found["numbers"]


@pytest.mark.parametrize("kind", ["module", "graph"])
def test_what_cannot_be_judged_is_noted(kind):
    dense = jobs.network() if kind == "module" else jobs.graph()
    job = jobs.job(dense)
    job.data, job.validation = job.calibration, None  # which has no labels
    found = measure(dense, job)
    assert found["numbers"].keys() == {"agreement"}
    assert any(line["what"] == "not-judged" for line in job.record.lines)


@pytest.mark.parametrize("kind", ["module", "graph"])
def test_data_that_the_model_does_not_take_is_noted(kind):
    dense = jobs.network() if kind == "module" else jobs.graph()
    job = jobs.job(dense)
    rows = [{"pixel_values": row["pixel_values"][:2], "labels": row["labels"]} for row in jobs.pictures(8)]
    job.validation = Dataset(rows, batched=False)
    assert measure(dense, job)["on"] == "calibration"
    assert any(line["what"] == "not-judged" for line in job.record.lines)


def _qa_parts(count):
    rng = np.random.default_rng(0)
    return [{"exact": float(rng.random() < 0.5), "f1": float(rng.random()), "count": 1.0} for _ in range(count)]


def test_drawn_intervals_are_those_of_the_mean():
    parts = _qa_parts(200)
    found = estimates(question_answering.METRIC, parts)["f1"]
    values = np.array([part["f1"] for part in parts])
    assert found.value == pytest.approx(values.mean())
    reach = 1.96 * values.std() / math.sqrt(len(values))
    assert found.low == pytest.approx(values.mean() - reach, abs=reach / 4)
    assert found.high == pytest.approx(values.mean() + reach, abs=reach / 4)
    assert found == estimates(question_answering.METRIC, parts)["f1"]  # the same draws each time


def test_overlaps_and_precision_have_intervals_too():
    rng = np.random.default_rng(0)
    tables = [{"table": torch.tensor(rng.integers(0, 9, (3, 3)), dtype=torch.float64)} for _ in range(12)]
    found = estimates(segmentation.METRIC, tables)["mean_iou"]
    assert found.low < found.value < found.high
    pictures = [
        {"scores": rng.random(4), "kinds": rng.integers(0, 2, 4), "right": rng.random((4, 10)) < 0.6,
         "truths": rng.integers(0, 2, 3)}
        for _ in range(12)
    ]  # fmt: skip
    found = estimates(object_detection.METRIC, pictures)["map"]
    assert found.low < found.value < found.high


def _seen_pictures(count, boxes=6):
    rng = np.random.default_rng(1)
    return [
        {"scores": rng.random(boxes), "kinds": rng.integers(0, 3, boxes), "right": rng.random((boxes, 10)) < 0.3,
         "truths": rng.integers(0, 3, 4)}
        for _ in range(count)
    ]  # fmt: skip


def _seen_classes(count):
    rng = np.random.default_rng(1)
    labels, said = rng.integers(0, 4, count), rng.integers(0, 5, count)
    rows = zip(labels, said)
    return [
        {"right": float(a == b), "count": 1.0, "labels": np.array([a]), "said": np.array([b])} for a, b in rows
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "parts"), [(object_detection, _seen_pictures(9)), (image_classification, _seen_classes(30))]
)
def test_draws_at_once_are_what_their_samples_come_to_one_after_the_other(task, parts):
    times = np.random.default_rng(0).multinomial(len(parts), np.full(len(parts), 1 / len(parts)), 20)
    found = task.METRIC.drawn(parts, times)
    for draw, row in enumerate(times):
        metric = task.METRIC()
        metric.merge([part for part, often in zip(parts, row) for _ in range(often)])
        wanted = metric.result()
        assert {name: values[draw] for name, values in found.items()} == pytest.approx(
            {name: wanted[name] for name in found}, abs=1e-12
        )


def test_accuracy_keeps_its_formula_beside_numbers_that_are_drawn():
    parts = _seen_classes(30)
    found = estimates(image_classification.METRIC, parts)
    assert found["accuracy"] == share([part["right"] for part in parts], np.ones(30))
    assert found["recall"].low < found["recall"].value < found["recall"].high


def test_the_interval_of_map_matches_boxes_once(monkeypatch):
    """Draws are resampled from what each picture came to: no box is held against an object again."""
    parts, calls = _seen_pictures(200, boxes=100), []
    ranked = object_detection.average_precision
    monkeypatch.setattr(object_detection, "average_precision", lambda *a: calls.append(1) or ranked(*a))
    found = estimates(object_detection.METRIC, parts)["map"]
    assert found.low < found.value < found.high
    assert len(calls) <= 3 * (1 + 16)  # classes, times all samples and rounds of many draws


def test_one_sample_has_no_interval():
    found = estimates(question_answering.METRIC, _qa_parts(1))
    assert found["f1"].low is None and found["exact_match"].low is None
