# SPDX-License-Identifier: Apache-2.0
"""The limits of the verdict, on what real tools made of real models."""

from math import log10

import pytest

from bench_rows import EMBEDDINGS, FLOAT_PERPLEXITIES, LANGUAGE, ONNX
from fewbit.evaluation.intervals import wilson_interval
from fewbit.evaluation.verdict import verdict

SAMPLES = 300


def facts(agreement, error):
    sqnr = -20 * log10(error)
    interval = wilson_interval(round(agreement * SAMPLES), SAMPLES)
    return {
        "samples": SAMPLES, "finite": True, "agreement": agreement, "agreement_interval": interval, "sqnr_db": sqnr,
        "decision_sqnr_db": sqnr,
    }  # fmt: skip


def by_metric(row):
    _, _, metric, before, after, agreement, error = row
    loss = (before - after) / before
    figures = {"metric": metric, "metric_loss": loss, "metric_loss_interval": (loss, loss)}
    return verdict(facts(agreement, error) | figures)


LABELED = [row for row in ONNX if row[2] is not None]


def test_no_working_model_is_broken_and_no_broken_one_is_ok():
    """By agreement alone, where the task's own metric is the judge."""
    pairs = [(by_metric(row)[0], verdict(facts(*row[5:]))[0], row[:2]) for row in LABELED]
    assert len(pairs) >= 39
    for metric, agreement, row in pairs:
        assert {metric, agreement} != {"ok", "broken"}, row
    assert sum(metric == agreement for metric, agreement, _ in pairs) >= 34


@pytest.mark.parametrize("row", [row for row in ONNX if row[1] == "fewbit"], ids=lambda row: row[0])
def test_what_the_first_version_made_works(row):
    assert verdict(facts(*row[5:]))[0] == "ok"
    if row[2] is not None:
        assert by_metric(row)[0] in ("ok", "degraded")


def test_models_that_lost_everything_are_broken():
    lost = [row for row in LABELED if row[4] <= 0.5 * row[3]]
    assert len(lost) >= 6
    for row in lost:
        assert verdict(facts(*row[5:]))[0] == by_metric(row)[0] == "broken", row


@pytest.mark.parametrize(("number", "tool", "wiki", "docs"), LANGUAGE)
def test_perplexities(number, tool, wiki, docs):
    verdicts = []
    for before, after in zip(FLOAT_PERPLEXITIES, (wiki, docs)):
        ratio = after / before
        quality = {"samples": 64, "finite": True, "perplexity_ratio": ratio}
        verdicts.append(verdict({**quality, "perplexity_ratio_interval": (ratio * 0.99, ratio * 1.01)})[0])
    expected = {"w8a8": "ok", "fp8": "ok", "int2 g64": "broken", "int3 g64": "broken"}.get(number, "degraded")
    assert expected in verdicts or tool == "llm-compressor"
    if tool != "llm-compressor" and number not in ("int2 g64", "int3 g64"):
        assert "broken" not in verdicts
    elif tool != "fewbit":
        assert verdicts == ["broken", "broken"]


@pytest.mark.parametrize(("preset", "cosine", "recall"), EMBEDDINGS)
def test_embeddings(preset, cosine, recall):
    quality = {"samples": 400, "finite": True, "cosine": cosine, "cosine_interval": (cosine - 0.002, cosine + 0.002)}
    kind, _ = verdict(quality)
    assert kind != "broken"
    assert kind == ("ok" if preset in ("w8a8", "w8a16", "w4a16", "w4a8_dynamic", "nvfp4") else "degraded")


def test_a_small_classifier_in_two_bits_without_agreement_is_broken():
    kind, text = verdict(facts(0.0, 1.4) | {"samples": 32, "agreement_interval": wilson_interval(0, 32)})
    assert kind == "broken" and text == (
        "the result does not work: agreement with the original 0% (0 to 10.7), 32 held-out samples"
    )


def test_near_ties_break_nothing():
    """A network with random weights changes its choice easily, although its outputs are nearly the same."""
    assert verdict(facts(0.5, 0.05))[0] == "degraded"
    assert verdict(facts(0.5, 0.5))[0] == "broken"
    assert verdict(facts(0.5, 0.2) | {"unsure": True})[0] == "degraded"
    unsure = {"unsure": True, "cosine": 0.99, "cosine_interval": (0.98, 1.0)}
    assert verdict(facts(0.5, 0.2) | unsure)[0] == "ok"


def test_few_labels_do_not_hide_lost_decisions():
    quality = facts(0.3, 1.0) | {"metric": "accuracy", "metric_loss": 0.2, "metric_loss_interval": (-0.1, 0.5)}
    kind, text = verdict(quality)
    assert kind == "degraded" and "agreement" in text
    assert verdict(quality | {"metric_loss": 0.0})[0] == "ok"


def test_rare_choices_that_are_lost_break_a_classifier():
    quality = facts(0.93, 0.3) | {"rare_agreement": 0.2, "rare_agreement_interval": (0.1, 0.4)}
    assert verdict(quality)[0] == "broken"
    assert verdict(quality | {"rare_agreement_interval": (0.1, 0.7)})[0] == "degraded"


@pytest.mark.parametrize(
    ("quality", "kind"),
    [
        ({}, "not-measured"),
        ({"samples": 0}, "not-measured"),
        ({"samples": 1, "finite": True, "agreement": 0.0, "agreement_interval": (0.0, 1.0)}, "not-measured"),
        ({"samples": 1, "finite": False}, "broken"),
        ({"samples": 9, "finite": True, "constant": ["y"], "sqnr_db": 30.0}, "broken"),
        ({"samples": 9, "finite": True, "sqnr_db": 18.0}, "ok"),
        ({"samples": 9, "finite": True, "sqnr_db": 10.0}, "degraded"),
        ({"samples": 9, "finite": True, "sqnr_db": 5.0}, "broken"),
    ],
)
def test_last_resorts(quality, kind):
    assert verdict(quality)[0] == kind


def test_a_metric_that_should_be_low():
    quality = {"samples": 90, "finite": True, "metric": "wer", "metric_higher_is_better": False}
    kind, text = verdict({**quality, "metric_loss": 0.05, "metric_loss_interval": (0.02, 0.08)})
    assert (kind, text) == ("degraded", "wer 5.0% higher than the original's (2.0 to 8.0)")
