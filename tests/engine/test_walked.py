# SPDX-License-Identifier: Apache-2.0
"""Weights settled on a walk: nearer to the float model than settled each for itself, and told with reasons."""

import pytest
import torch
from tests.tiny_models import transformer

import fewbit
from fewbit.errors import DataError


def texts(count, seed=0, length=24):
    draw = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(3, 40, (2, length), generator=draw)} for _ in range(count)]


def off(model, made, items):
    """What the answers are off, over what they are."""
    with torch.no_grad():
        pairs = [(model(**item).logits.double(), made(**item).logits.double()) for item in items]
    return float(sum((a - b).square().sum() for a, b in pairs) / sum(a.square().sum() for a, _ in pairs))


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2", "opt"])
def test_answers_are_nearer_than_those_of_the_search(name):
    model = transformer(name).eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    made = {
        algorithm: fewbit.compress_weights(
            model, mode="int4_sym", group_size=8, dataset=texts(20), algorithm=algorithm, ignored_scope=None
        )
        for algorithm in ("scale_search", "gptq")
    }
    errors = {algorithm: off(model, each, texts(6, seed=9)) for algorithm, each in made.items()}
    assert errors["gptq"] < 0.9 * errors["scale_search"]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    lines = {line["where"]: line for line in made["gptq"].fewbit_record.lines if line["what"] == "quantized"}
    settled = [line for line in lines.values() if "held_out_output_error_saved" in line]
    assert settled and all(line["held_out_output_error_saved"] >= 0 for line in settled)


def test_the_same_again_is_the_same():
    model = transformer("llama").eval()
    first, second = (
        fewbit.compress_weights(model, mode="int4_asym", group_size=8, dataset=texts(6), algorithm="gptq").state_dict()
        for _ in range(2)
    )
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_no_data_and_bad_data():
    model = transformer("llama").eval()
    with pytest.raises(DataError, match="empty"):
        fewbit.compress_weights(model, mode="int4_sym", group_size=8, dataset=[], algorithm="gptq")
    model.model.layers[1].mlp.up_proj.weight.data.mul_(1e38)
    with pytest.raises(DataError, match="not finite"):
        fewbit.compress_weights(model, mode="int4_sym", group_size=8, dataset=texts(2), algorithm="gptq")


def test_without_data_it_is_the_search():
    model = transformer("llama").eval()
    a, b = (
        fewbit.compress_weights(model, mode="int4_sym", group_size=8, algorithm=n) for n in ("gptq", "scale_search")
    )
    assert off(a, b, texts(1)) == 0
