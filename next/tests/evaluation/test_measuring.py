# SPDX-License-Identifier: Apache-2.0
"""Latency with a clock of its own, errors of layers, language models token by token."""

from math import exp

import numpy as np
import pytest

from fewbit.evaluation.latency import measure_latency
from fewbit.evaluation.layer_error import LayerErrors, rank_layers, worst_layers
from fewbit.evaluation.tokens import TokenComparison, looks_ahead, next_token_logits

torch = pytest.importorskip("torch")


class Clock:
    """Time passes when a model runs."""

    def __init__(self):
        self.now, self.calls = 0.0, []

    def model(self, name, *seconds):
        times = iter(seconds)

        def run():
            self.calls.append(name)
            self.now += next(times, seconds[-1])

        return run


def test_models_run_in_turns_and_the_median_counts():
    clock = Clock()
    first, second = clock.model("a", *[9] * 3, 0.02, 5.0, 0.02), clock.model("b", 0.01)
    facts = measure_latency(first, second, runs=20, seconds=1e9, how="1 thread", clock=lambda: clock.now)
    assert facts["original_ms"] == pytest.approx(20) and facts["result_ms"] == pytest.approx(10)
    assert facts["runs"] == 20 and facts["how"] == "median of 20, 1 thread"
    timed = clock.calls[6:]
    assert all({*timed[i : i + 2]} == {"a", "b"} for i in range(0, 40, 2))
    assert timed[0] != timed[2]  # each goes first in half of the runs


def test_slow_models_get_fewer_runs():
    clock = Clock()
    facts = measure_latency(clock.model("a", 2.0), clock.model("b", 1.0), runs=50, seconds=30, clock=lambda: clock.now)
    assert facts["runs"] == 10
    facts = measure_latency(clock.model("a", 99.0), clock.model("b", 1.0), runs=50, seconds=30, clock=lambda: clock.now)
    assert facts["runs"] == 3


def test_a_layer_is_judged_by_its_own_error():
    """The first layer is wrong, the second only passes it on."""
    from torch import nn

    from fewbit.backends.torch.module_model import ModuleModel

    torch.manual_seed(0)
    original = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    result = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    result.load_state_dict(original.state_dict())
    with torch.no_grad():
        result[0].weight += 0.3
    errors = LayerErrors(["0", "2"], lambda layer, x: result.get_submodule(layer)(x))
    with ModuleModel.read(original).session(observe=errors.observers()) as session:
        session.run({"input": np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)})
    rows = errors.rows()
    assert [row["name"] for row in rows] == ["0", "2"] and rows[0]["share"] == 1 and rows[1]["error"] == 0
    assert worst_layers(rows) == "0 100% of the error"


def test_rows_without_an_error_are_left_out():
    rows = rank_layers([{"name": "a"}, {"name": "b", "error": 0.0}, {"name": "c", "error": 0.5}])
    assert [row["name"] for row in rows] == ["c", "b"] and worst_layers([]) == ""


def test_tokens_that_a_model_rules_out():
    """A logit of minus infinity is an output, not an error (Q170)."""
    logits = torch.randn(2, 6, 7, generator=torch.Generator().manual_seed(0))
    logits[..., 3] = float("-inf")
    tokens = torch.tensor([[0, 1, 2, 4, 5, 6], [1, 1, 0, 2, 4, 5]])
    comparison = TokenComparison()
    comparison.add(logits, logits + 0.0, tokens)
    facts = comparison.facts()
    assert facts["finite"] and facts["divergence"] == 0 and facts["agreement"] == 1
    ruled_out = logits.clone()
    ruled_out[..., 4] = float("-inf")  # which the original gives a share
    comparison = TokenComparison()
    comparison.add(logits, ruled_out, tokens)
    assert comparison.facts()["finite"] and comparison.facts()["divergence"] > 10


def test_padding_does_not_count():
    draw = torch.Generator().manual_seed(1)
    logits, other = torch.randn(3, 8, 5, generator=draw), torch.randn(3, 8, 5, generator=draw)
    tokens = torch.randint(0, 5, (3, 8), generator=draw)
    mask = torch.ones(3, 8)
    mask[:, 6:] = 0
    padded, cut = TokenComparison(), TokenComparison()
    padded.add(logits, other, tokens, mask)
    cut.add(logits[:, :6], other[:, :6], tokens[:, :6])
    for name, value in cut.facts().items():
        assert padded.facts()[name] == pytest.approx(value)


def test_perplexity_and_its_paired_interval():
    draw = torch.Generator().manual_seed(2)
    logits, tokens = torch.randn(20, 10, 6, generator=draw), torch.randint(0, 6, (20, 10), generator=draw)
    comparison = TokenComparison()
    comparison.add(logits, 1.02 * logits, tokens)
    facts = comparison.facts()
    loss, rows = torch.nn.functional.cross_entropy, logits[:, :-1].flatten(0, 1)
    losses = [loss(scale * rows, tokens[:, 1:].flatten()) for scale in (1, 1.02)]
    assert facts["perplexity"] == pytest.approx([exp(loss) for loss in losses], rel=1e-5)
    low, high = facts["perplexity_ratio_interval"]
    assert low < facts["perplexity_ratio"] < high and high - low < 0.1


def test_models_that_look_ahead_have_no_perplexity():
    """Q168: tried with another last token."""
    inputs = {"input_ids": np.array([[1, 2, 3, 4, 0]]), "attention_mask": np.array([[1, 1, 1, 1, 0]])}

    def causal(batch):
        return np.cumsum(np.eye(6)[batch["input_ids"]], 1)

    def encoder(batch):
        return np.eye(6)[batch["input_ids"]] + np.eye(6)[batch["input_ids"]].sum(1, keepdims=True)

    assert looks_ahead(encoder, inputs) and not looks_ahead(causal, inputs)
    assert not looks_ahead(encoder, {"input_ids": np.array([[3]])})
    comparison = TokenComparison(looks_ahead=True)
    logits = torch.randn(4, 5, 6)
    comparison.add(logits, logits, torch.zeros(4, 5, dtype=torch.int64))
    facts = comparison.facts()
    assert "perplexity" not in facts and facts["agreement"] == 1


def test_the_output_with_scores_of_tokens():
    inputs = {"input_ids": np.array([[1, 7]])}
    outputs = {"hidden": np.zeros((1, 2, 4)), "logits": np.zeros((1, 2, 9))}
    assert next_token_logits(outputs, inputs) == "logits" and next_token_logits(outputs, {"x": 1}) is None
