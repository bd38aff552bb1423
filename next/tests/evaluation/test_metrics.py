# SPDX-License-Identifier: Apache-2.0
"""Metrics against scikit-learn, scipy and brute force; and what every metric keeps."""

from math import exp, isfinite

import numpy as np
import pytest

from fewbit import registry
from fewbit.errors import UsageError
from fewbit.evaluation.metric_comparison import MetricComparison, metric_loss
from fewbit.evaluation.metrics._base import Metric, find_metric

sklearn = pytest.importorskip("sklearn.metrics")
NAMES = registry.names("metrics")


def figure(name, outputs, labels):
    metric = registry.get("metrics", name)
    return metric.compute([metric.row(output, label) for output, label in zip(outputs, labels)])


@pytest.mark.parametrize("name", NAMES)
def test_every_metric_keeps_the_contract(name):
    metric = registry.get("metrics", name)
    assert isinstance(metric, Metric) and metric.name == name and metric.title
    outputs, labels = metric.example
    rows = [metric.row(output, label) for output, label in zip(outputs, labels)]
    assert outputs and None not in rows
    value = metric.compute(rows)
    assert metric.low <= value <= metric.high
    loss, (low, high) = metric_loss(metric, rows * 10, rows * 10)
    assert loss == 0 and low <= 0 <= high
    assert metric.row({"x": np.zeros(3)} if metric.takes_all else np.zeros((2, 2, 2)), object()) is None


def test_names_are_listed(fewbit):
    code, out, _ = fewbit("list", "metrics")
    assert code == 0 and all(name in out for name in NAMES)
    with pytest.raises(UsageError, match="accuracy"):
        find_metric("acuracy")


@pytest.mark.parametrize("classes", [2, 5])
def test_classification_is_scikit_learns(classes):
    draw = np.random.default_rng(0)
    labels = draw.integers(0, classes, 80)
    scores = draw.normal(size=(80, classes)) + 1.5 * np.eye(classes)[labels]
    predicted, average = scores.argmax(1), "binary" if classes == 2 else "macro"
    assert figure("accuracy", scores, labels) == pytest.approx(sklearn.accuracy_score(labels, predicted))
    for name in ("precision", "recall", "f1"):
        wanted = getattr(sklearn, f"{name}_score")(labels, predicted, average=average)
        assert figure(name, scores, labels) == pytest.approx(wanted)


def test_top5():
    draw = np.random.default_rng(1)
    labels, scores = draw.integers(0, 20, 60), draw.normal(size=(60, 20))
    wanted = sklearn.top_k_accuracy_score(labels, scores, k=5, labels=range(20))
    assert figure("top5", scores, labels) == pytest.approx(wanted)
    assert figure("top5", [np.zeros(20)], [3]) == 0  # a constant output knows nothing


def test_one_score_for_two_classes():
    assert figure("accuracy", np.array([[0.9], [0.2], [0.7]]), [1, 0, 0]) == pytest.approx(2 / 3)
    assert figure("accuracy", np.array([[3.0], [-2.0]]), [1, 0]) == 1
    assert registry.get("metrics", "accuracy").row(np.zeros(3), 7) is None


def test_regression_and_correlation():
    draw = np.random.default_rng(2)
    x, y = draw.normal(size=50), draw.normal(size=50)
    x[:10] = x[0]  # ties
    stats = pytest.importorskip("scipy.stats")
    outputs = x[:, None]
    assert figure("mse", outputs, y) == pytest.approx(sklearn.mean_squared_error(y, x))
    assert figure("mae", outputs, y) == pytest.approx(sklearn.mean_absolute_error(y, x))
    assert figure("pearson", outputs, y) == pytest.approx(stats.pearsonr(x, y)[0])
    assert figure("spearman", outputs, y) == pytest.approx(stats.spearmanr(x, y)[0])
    assert figure("spearman", np.ones((50, 1)), y) == 0


@pytest.mark.parametrize("layout", ["nchw", "nhwc", "classes"])
def test_mean_iou_is_the_jaccard_index(layout):
    draw = np.random.default_rng(3)
    masks = draw.integers(0, 4, (6, 16, 20))
    scores = draw.normal(size=(6, 4, 16, 20)) + np.moveaxis(np.eye(4)[masks], -1, 1)
    outputs = {"nchw": scores, "nhwc": np.moveaxis(scores, 1, -1), "classes": scores.argmax(1)}[layout]
    wanted = sklearn.jaccard_score(masks.ravel(), scores.argmax(1).ravel(), average="macro")
    assert figure("mean_iou", outputs, masks) == pytest.approx(wanted)
    assert figure("mean_iou", outputs, [{"mask": mask} for mask in masks]) == pytest.approx(wanted)


def test_void_pixels_and_other_sizes():
    mask = np.array([[0, 1], [255, 1]])
    scores = np.moveaxis(np.eye(2)[[[0, 1], [0, 1]]], -1, 0)
    assert figure("mean_iou", [scores], [mask]) == 1
    assert figure("mean_iou", [scores.repeat(4, 1).repeat(4, 2)], [np.where(mask == 255, 0, mask)]) == 1


def test_perplexity_and_token_accuracy():
    draw = np.random.default_rng(4)
    tokens, logits = draw.integers(0, 9, (3, 12)), draw.normal(size=(3, 12, 9))
    losses = []
    for row, scores in zip(tokens, logits):
        shares = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        losses += [-np.log(shares[i, row[i + 1]]) for i in range(11)]
    assert figure("perplexity", logits, tokens) == pytest.approx(exp(np.mean(losses)))
    labels = tokens.copy()
    labels[:, :4] = -100
    wanted = np.mean(logits.argmax(-1)[:, 4:] == tokens[:, 4:])
    assert figure("token_accuracy", logits, labels) == pytest.approx(wanted)


def brute_force_edits(a, b):
    if not a or not b:
        return len(a) + len(b)
    change = brute_force_edits(a[1:], b[1:]) + (a[0] != b[0])
    return min(brute_force_edits(a[1:], b) + 1, brute_force_edits(a, b[1:]) + 1, change)


def test_sequences():
    draw = np.random.default_rng(5)
    for _ in range(20):
        a, b = (draw.integers(1, 4, draw.integers(1, 6)) for _ in range(2))
        assert figure("wer", [a], [b]) == pytest.approx(brute_force_edits(list(a), list(b)) / len(b))
        assert figure("exact_match", [a], [b]) == float(list(a) == list(b))
    scores = np.eye(4)[[0, 2, 2, 0, 2, 3, 0]]  # CTC: blank 2 2 blank 2 3 blank
    assert figure("exact_match", [scores], [np.array([2, 2, 3])]) == 1
    assert figure("wer", ["a b"], ["a c d"]) == pytest.approx(2 / 3)


def table(*rows):
    return {"dets": np.array(rows, float).reshape(-1, 6)}


def test_map50_by_hand():
    box = {"boxes": np.array([[0.3, 0.3, 0.4, 0.4], [0.8, 0.8, 0.2, 0.2]]), "classes": np.array([0, 0])}
    right, other = (0.1, 0.1, 0.5, 0.5), (0.7, 0.7, 0.9, 0.9)
    assert figure("map50", [table((*right, 0.9, 0), (*other, 0.8, 0))], [box]) == 1
    # A wrong box between two right ones: precision 1, 1/2, 2/3.
    wrong = (0.0, 0.5, 0.2, 0.7)
    outputs = table((*right, 0.9, 0), (*wrong, 0.85, 0), (*other, 0.8, 0))
    assert figure("map50", [outputs], [box]) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    # Twice the same object counts once; another class not at all.
    assert figure("map50", [table((*right, 0.9, 0), (*right, 0.8, 0))], [box]) == pytest.approx(0.5)
    assert figure("map50", [table((*right, 0.9, 1))], [box]) == 0
    # Boxes in pixels of the input.
    pixels = table((*(64 * side for side in right), 0.9, 0), (*(64 * side for side in other), 0.8, 0))
    assert figure("map50", [pixels], [box | {"input_size": (64, 64)}]) == 1


def test_the_metric_follows_the_labels():
    cases = [
        ({"y": np.array([0.0, 1.0])}, 1, "accuracy"),
        ({"boxes": np.zeros((1, 4)), "scores": np.ones(1), "labels": np.array([1])},
         {"boxes": np.ones((1, 4)), "classes": np.array([1])}, "map50"),
        ({"y": np.zeros((2, 4, 4))}, np.zeros((4, 4), int), "mean_iou"),
        ({"y": np.zeros((5, 3))}, np.zeros(5, int), "token_accuracy"),
        ({"y": np.array([0.5])}, 0.7, "mae"),
        ({"y": np.zeros((3, 3))}, "text", None),
    ]  # fmt: skip
    for outputs, label, name in cases:
        comparison = MetricComparison()
        comparison.add(outputs, outputs, label)
        assert comparison.facts().get("metric") == name


def test_a_named_metric_that_does_not_fit_is_an_error():
    comparison = MetricComparison(find_metric("mean_iou"))
    with pytest.raises(UsageError, match=r"mean_iou does not fit .* y \[3\]"):
        comparison.add({"y": np.zeros(3)}, {"y": np.zeros(3)}, 1)


def test_functions_of_the_user(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def per_sample(outputs, labels):\n    return [float(o.argmax() == l) for o, l in zip(outputs, labels)]\n"
        "def one(outputs, labels):\n    return sum(abs(o[0] - l) for o, l in zip(outputs, labels)) / len(labels)\n"
        "one.higher_is_better = False\n"
        "def wrong(outputs, labels):\n    return [1.0]\n"
    )
    draw = np.random.default_rng(6)
    outputs, labels = draw.normal(size=(30, 3)), draw.integers(0, 3, 30)
    for name in ("per_sample", "one"):
        comparison = MetricComparison(find_metric(f"{tmp_path}/mine.py:{name}"))
        for output, label in zip(outputs, labels):
            comparison.add({"y": output}, {"y": output + 0.1}, int(label))
        facts = comparison.facts()
        assert facts["metric"] == name and facts["metric_higher_is_better"] == (name == "per_sample")
        assert facts["metric_loss_interval"][0] <= facts["metric_loss"] <= facts["metric_loss_interval"][1]
    comparison = MetricComparison(find_metric(f"{tmp_path}/mine.py:wrong"))
    for output, label in zip(outputs, labels):
        comparison.add({"y": output}, {"y": output}, int(label))
    with pytest.raises(UsageError, match="for 30 samples"):
        comparison.facts()
    with pytest.raises(UsageError, match="metric of type int"):
        find_metric(3)


def compared(name, before, after, labels):
    comparison = MetricComparison(find_metric(name))
    for a, b, label in zip(before, after, labels):
        comparison.add({"y": a}, {"y": b}, label)
    return comparison.facts()


def test_the_loss_is_paired_and_inside_the_range():
    draw = np.random.default_rng(7)
    labels = draw.integers(0, 4, 200)
    before = draw.normal(size=(200, 4)) + 3 * np.eye(4)[labels]
    after = before.copy()
    after[:20] = -before[:20]
    facts = compared("accuracy", before, after, labels)
    a, b = facts["metric_values"]
    assert facts["metric_loss"] == pytest.approx((a - b) / a)
    low, high = facts["metric_loss_interval"]
    assert 0 < low < facts["metric_loss"] < high < 0.2  # unpaired it would reach much further
    for name in ("f1", "accuracy", "top5"):
        facts = compared(name, before, -before, labels)
        assert facts["metric_loss_interval"][1] <= 1 and all(0 <= e <= 1 for i in facts["metric_intervals"] for e in i)


def test_wrong_order_of_labels_is_no_evidence():
    draw = np.random.default_rng(8)
    labels = draw.integers(0, 10, 100)
    scores = np.eye(10)[(labels + 3) % 10]
    facts = compared("accuracy", scores, scores, labels)
    assert "metric_loss" not in facts and "another order" in facts["metric_note"]


def test_lower_is_better():
    draw = np.random.default_rng(9)
    labels = draw.normal(size=100)
    before = (labels + draw.normal(0, 0.1, 100))[:, None]
    facts = compared("mae", before, before + 1, labels)
    assert facts["metric_loss"] > 0 and facts["metric_loss_interval"][0] > 0 and isfinite(facts["metric_loss"])
