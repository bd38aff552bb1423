# SPDX-License-Identifier: Apache-2.0
"""Outputs of every kind: what counts as a decision, what does not, and what shows that a model is broken."""

import numpy as np
import pytest

from fewbit.errors import ModelError
from fewbit.evaluation.comparison import Comparison
from fewbit.evaluation.decisions import class_axis
from fewbit.evaluation.verdict import verdict


def facts(original, result, labels=(), batch=1, **options):
    """Samples one by one, or in batches, from arrays with a batch axis or mappings of these."""
    original, result = (value if isinstance(value, dict) else {"y": value} for value in (original, result))
    comparison = Comparison(**options)
    count = len(next(iter(original.values())))
    for start in range(0, count, batch):
        part = slice(start, start + batch)
        comparison.add({k: v[part] for k, v in original.items()}, {k: v[part] for k, v in result.items()}, labels[part])
    return comparison.facts()


@pytest.fixture
def draw():
    return np.random.default_rng(0)


def test_classes(draw):
    scores = draw.normal(size=(60, 5)) * 3
    other = scores.copy()
    other[:6] = np.roll(other[:6], 1, axis=1)
    for batch in (1, 7):
        found = facts(scores, other, batch=batch)
        assert found["agreement"] == 0.9 and found["samples"] == 60
        assert found["agreement_interval"][0] < 0.9 < found["agreement_interval"][1] <= 1
    noise, signal = np.square(other - scores).sum(), np.square(scores).sum()
    assert found["sqnr_db"] == pytest.approx(10 * np.log10(signal / noise))


def test_two_bits_that_lost_everything_are_broken(draw):
    scores = draw.normal(size=(32, 10)) * 3
    assert verdict(facts(scores, np.roll(scores, 3, 1)))[0] == "broken"
    assert verdict(facts(scores, scores + draw.normal(size=scores.shape) * 0.01))[0] == "ok"


def test_near_ties_are_not_broken(draw):
    scores = draw.normal(size=(64, 10)) * 1e-3 + draw.normal(size=(64, 1))
    other = scores + draw.normal(size=scores.shape) * 1e-3
    found = facts(scores, other)
    assert found["agreement"] < 0.7 and verdict(found)[0] == "degraded"


def ctc(draw, samples=20, length=40, classes=12):
    """Log-probabilities whose choice is mostly blank."""
    choices = np.where(draw.random((samples, length)) < 0.2, draw.integers(1, classes, (samples, length)), 0)
    logits = draw.normal(size=(samples, length, classes)) * 0.3 + 6 * np.eye(classes)[choices]
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True)), choices


def test_blanks_do_not_hide_lost_characters(draw):
    scores, choices = ctc(draw)
    blank = scores.copy()
    blank[..., 0] = 9.0  # every output is blank
    blank -= np.log(np.exp(blank).sum(-1, keepdims=True))
    found = facts(scores, blank)
    assert found["agreement"] == 0 and found["agreement_of"] == "rare choices"
    assert found["agreement_overall"] == pytest.approx((choices == 0).mean(), abs=0.02)
    assert verdict(found)[0] == "broken"
    assert facts(scores, scores)["agreement"] == 1
    # Characters that appear out of nothing count as much as those that disappear.
    noisy = scores.copy()
    noisy[:, ::5, 1] = 9.0
    assert facts(scores, noisy)["agreement"] < 0.8


def test_recurrent_outputs_have_their_samples_second(draw):
    scores, _ = ctc(draw, samples=6)
    moved = np.moveaxis(scores, 0, 1)
    comparison = Comparison()
    comparison.add({"y": moved}, {"y": moved}, samples=6)
    assert comparison.samples == 6 and comparison.facts()["agreement"] == 1


def test_rare_positives_of_a_map(draw):
    """A text detector: a map of probabilities, nearly empty."""
    maps = draw.random((12, 1, 32, 32)) * 0.2
    maps[:, :, 10:14, 5:25] = 0.9
    empty = np.minimum(maps, 0.2)
    found = facts(maps, empty)
    assert found["agreement"] == 0 and found["agreement_of"] == "positives" and found["agreement_overall"] > 0.9
    assert verdict(found)[0] == "broken"
    shifted = np.roll(maps, 1, axis=2)  # Dice 3/4
    assert facts(maps, shifted)["agreement"] == pytest.approx(0.75)


@pytest.mark.parametrize(("shape", "axis"), [
    ((1, 21, 8, 8), 1), ((1, 8, 8, 21), 3), ((2, 2, 48, 64), 1), ((2, 48, 64, 2), 3), ((1, 1, 9, 9), 1),
    ((1, 9, 9, 1), 3), ((3, 10), 1), ((1, 56, 97), 2), ((1, 4, 8, 8, 8), 1),
])  # fmt: skip
def test_the_shape_tells_the_class_axis(shape, axis):
    assert class_axis(shape) == axis


@pytest.mark.parametrize("layout", [1, 3])
def test_segmentation(draw, layout):
    classes = np.zeros((6, 24, 32), int)
    classes[:, 4:9, 4:9] = 2
    scores = np.moveaxis(np.eye(3)[classes] * 6 - 3 + draw.normal(size=(6, 24, 32, 3)) * 0.1, -1, layout)
    other = np.moveaxis(np.eye(3)[np.zeros_like(classes)] * 6 - 3 + draw.normal(size=(6, 24, 32, 3)) * 0.1, -1, layout)
    assert facts(scores, scores)["agreement"] == 1
    found = facts(scores, other)
    assert found["agreement"] == 0 and found["agreement_overall"] > 0.9 and verdict(found)[0] == "broken"


def test_a_class_that_most_samples_have_hides_the_others(draw):
    labels = np.where(np.arange(200) % 10 == 0, 1, 0)
    scores = np.eye(2)[labels] * 4 - 2 + draw.normal(size=(200, 2)) * 0.1
    other = np.stack([np.full(200, 2.0), np.full(200, -2.0)], 1) + draw.normal(size=(200, 2)) * 0.1
    found = facts(scores, other)
    assert found["agreement"] == 0.9 and found["rare_agreement"] == 0
    assert verdict(found)[0] == "broken"


def test_voice_activity_is_yes_or_no(draw):
    shares = draw.random((80, 1))
    states = draw.normal(size=(80, 128))
    found = facts({"output": shares, "stateN": states}, {"output": shares, "stateN": -states})
    assert found["agreement"] == 1 and {row["kind"] for row in found["outputs"]} == {"yes-or-no", "values"}
    assert facts(shares, 1 - shares)["agreement"] == 0


def test_embeddings_are_compared_by_cosine(draw):
    vectors = draw.normal(size=(40, 384))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    near = vectors + draw.normal(size=vectors.shape) * 0.01
    found = facts(vectors, near)
    wanted = np.mean([a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(vectors, near)])
    assert found["cosine"] == pytest.approx(wanted) and "agreement" not in found
    assert found["cosine_interval"][1] <= 1 and verdict(found)[0] == "ok"
    assert verdict(facts(vectors, draw.normal(size=vectors.shape)))[0] == "broken"
    hidden = draw.normal(size=(10, 16, 64))
    assert "agreement" not in facts({"last_hidden_state": hidden}, {"last_hidden_state": hidden})


def test_wide_scores_may_be_an_embedding_unless_labels_say_so(draw):
    scores = draw.normal(size=(50, 200))
    other = scores + draw.normal(size=scores.shape) * 0.25
    found = facts(scores, other)
    assert found["unsure"] and found["agreement"] < 0.9 and found["cosine"] > 0.95 and verdict(found)[0] == "ok"
    labels = list(scores.argmax(1))
    known = facts(scores, other, labels)
    assert "unsure" not in known and known["metric"] == "accuracy" and known["metric_values"][0] == 1
    assert verdict(known)[0] != "ok"
    assert "unsure" not in facts(scores, other, classes=True)


def test_quantities_make_no_decision(draw):
    """Speech quality: three scores from 1 to 5; the largest of them means nothing."""
    quality = 1 + 4 * draw.random((30, 3))
    found = facts(quality, quality + 0.01)
    assert "agreement" not in found and found["sqnr_db"] > 40
    assert "outputs only" in verdict(found)[1]


def test_integers_are_decisions(draw):
    classes = draw.integers(0, 9, (40,))
    other = np.where(np.arange(40) < 10, (classes + 1) % 9, classes)
    assert facts(classes, other)["agreement"] == 0.75
    # Next to scores they follow from these.
    scores = np.eye(9)[classes] * 4 - 2
    found = facts({"class": classes, "scores": scores}, {"class": other, "scores": scores})
    assert found["agreement"] == 1


def detections(draw, count):
    low = draw.random((count, 2)) * 100
    return {
        "boxes": np.concatenate([low, low + 20], 1), "scores": np.full(count, 0.8), "labels": draw.integers(0, 3, count)
    }  # fmt: skip


def test_boxes_are_matched_whatever_their_number(draw):
    comparison = Comparison()
    for _ in range(10):
        mine = {name: array[None] for name, array in detections(draw, 8).items()}
        kept = draw.permutation(8)[:6]
        comparison.add(mine, {name: array[:, kept] for name, array in mine.items()})
    found = comparison.facts()
    assert found["agreement_of"] == "boxes" and found["agreement"] == pytest.approx(2 * 6 / 14)
    assert found["agreement_interval"][1] <= 1


def test_raw_detection_heads(draw):
    """[N, 4 + classes, anchors]: coordinates are no scores, and nearly all scores are low."""
    head = np.concatenate([draw.random((8, 4, 300)) * 640, draw.random((8, 5, 300)) * 0.05], 1)
    head[:, 6, 50:60] = 0.9
    lost = head.copy()
    lost[:, 4:] *= 0.1
    for layout in (head, np.moveaxis(head, 1, 2)):
        assert facts(layout, layout)["agreement"] == 1
    assert facts(head, lost)["agreement"] == 0 and verdict(facts(head, lost))[0] == "broken"


def test_several_levels_of_scores(draw):
    levels = {f"scores{i}": draw.random((6, 40 * 4**i, 5)) * 0.1 for i in range(2)}
    for array in levels.values():
        array[:, ::10, 2] = 0.8
    lost = {name: array * 0.5 for name, array in levels.items()}
    found = facts(levels, lost)
    assert found["agreement"] == 0 and found["agreement_of"] == "positives"


def test_outputs_that_are_not_finite(draw):
    scores = draw.normal(size=(10, 4))
    broken = scores.copy()
    broken[3, 1] = np.nan
    found = facts(scores, broken)
    assert not found["finite"] and verdict(found)[0] == "broken" and "not finite" in verdict(found)[1]
    masked = scores.copy()
    masked[:, 0] = -np.inf
    found = facts(masked, masked)
    assert found["finite"] and found["agreement"] == 1 and np.isfinite(found["sqnr_db"])


def test_constant_outputs(draw):
    scores = draw.normal(size=(10, 4))
    found = facts(scores, np.tile(scores[:1], (10, 1)))
    assert found["constant"] == ["y"] and verdict(found)[0] == "broken"
    assert "constant" not in facts(scores[:1].repeat(10, 0), scores[:1].repeat(10, 0))


def test_outputs_that_do_not_belong_together(draw):
    comparison = Comparison()
    with pytest.raises(ModelError, match="different outputs"):
        comparison.add({"a": np.zeros((1, 2))}, {"b": np.zeros((1, 2)), "c": np.zeros((1, 2))})
    with pytest.raises(ModelError, match=r"\[2\] and \[3\]"):
        comparison.add({"a": np.zeros((1, 2))}, {"a": np.zeros((1, 3))})
    renamed = Comparison()
    renamed.add({"a": np.ones((3, 2))}, {"b": np.ones((3, 2))})
    assert renamed.facts()["sqnr_db"] == 200


def test_a_metric_with_labels(draw):
    labels = list(draw.integers(0, 4, 50))
    scores = np.eye(4)[labels] * 4 - 2 + draw.normal(size=(50, 4)) * 0.1
    other = scores.copy()
    other[:25] = np.roll(other[:25], 1, 1)
    found = facts(scores, other, labels)
    assert found["metric"] == "accuracy" and found["metric_values"] == [1.0, 0.5] and found["labeled"] == 50
    assert verdict(found)[0] == "broken" and "accuracy 50.0% lower" in verdict(found)[1]
