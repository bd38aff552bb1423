# SPDX-License-Identifier: Apache-2.0
"""Language models with channels that stand out: prepared where their answers come nearer, and told either way."""

import pytest
import torch
from tests.planted import off, planted, texts
from tests.tiny_models import transformer

import fewbit
from fewbit import UsageError
from fewbit.algorithms._members import algorithm
from fewbit.backends.eager.view import EagerView
from fewbit.engine.collect import collect
from fewbit.engine.inputs import watch_inputs
from fewbit.engine.options import Options
from fewbit.engine.planning import make_plan
from fewbit.engine.preparing import prepare
from fewbit.engine.verbs import configuration
from fewbit.record import Record

BUILDS = ("llama", "qwen3", "gemma", "opt", "gpt2")
LINKS = {
    "llama": {"input_layernorm": "q_proj k_proj v_proj", "v_proj": "o_proj", "up_proj": "down_proj"},
    "gemma": {"post_attention_layernorm": "gate_proj up_proj", "v_proj": "o_proj", "up_proj": "down_proj"},
    "opt": {"self_attn_layer_norm": "q_proj k_proj v_proj", "final_layer_norm": "fc1", "fc1": "fc2"},
    "gpt2": {"ln_1": "c_attn", "c_attn": "c_proj", "ln_2": "c_fc"},
}
LINKS["qwen3"] = LINKS["llama"]


def last(path):
    return path.rpartition(".")[2]


def compressed(model, how, mode="int4_sym", count=20, **more):
    return fewbit.compress_weights(model, mode=mode, group_size=16, dataset=texts(count), algorithm=how, **more)


def scaled(made):
    return [line for line in made.fewbit_record.lines if line["what"] == "scaled"]


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize("solver", ["awq", "smooth_quant"])
def test_links_are_found_and_the_float_model_stays(name, solver):
    model = planted(name)
    view, items = EagerView(model).copy(), [((), item) for item in texts(5)]
    plan, record = make_plan(view, configuration("w8a8" if solver == "smooth_quant" else "w4a16")), Record("test")
    watch, seen = watch_inputs(view, {w.point.layer for w in plan.weights}, algorithm(solver).needs)
    collect(view, plan, items, watch)
    links = view.structure(items[0]).links
    done = prepare(view, plan, [algorithm(solver)], links, seen, record)
    found = {(last(link.producer), " ".join(map(last, link.consumers))) for link in links}
    assert set(LINKS[name].items()) <= found
    assert done.steps and len(record.lines) == len(links)
    assert off(model, view.native(), texts(3, seed=9)) < 1e-10
    assert all(line["error"] < line["error_unscaled"] for line in record.lines if line["what"] == "scaled")


@pytest.mark.parametrize("name", BUILDS)
def test_awq_is_nearer_than_the_search_alone(name):
    model, unseen = planted(name), texts(6, seed=9)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    made = compressed(model, "awq")
    assert off(model, made, unseen) < 0.9 * off(model, compressed(model, "scale_search"), unseen)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    facts = made.fewbit_record.facts["preparing"]
    assert facts["kept"] and facts["error"] < facts["error_unprepared"] and facts["items"] == 4
    assert scaled(made) and all(line["algorithm"] == "awq" for line in scaled(made))
    rounded = {line["algorithm"] for line in made.fewbit_record.lines if line["what"] == "quantized"}
    assert rounded == {"scale_search"}


def test_awq_before_a_walk_is_nearer_than_the_walk_alone():
    model, unseen = planted("llama"), texts(6, seed=9)
    made = compressed(model, "awq+gptq")
    assert off(model, made, unseen) < 0.9 * off(model, compressed(model, "gptq"), unseen)
    assert scaled(made)
    assert "gptq" in {line["algorithm"] for line in made.fewbit_record.lines if line["what"] == "quantized"}


def test_the_same_again_is_the_same():
    model = planted("gpt2")
    first, second = (compressed(model, "awq+gptq", count=5).state_dict() for _ in range(2))
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("preset", ["w8a8", "w8a8_dynamic"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma", "opt"])
def test_integers_are_read_from_smoothed_channels(name, preset):
    model, unseen = planted(name, 40.0), texts(6, seed=9)
    made = fewbit.quantize(model, texts(10), preset=preset)
    plain = fewbit.quantize(model, texts(10), preset=preset, advanced_parameters={"prepare": ()})
    assert off(model, made, unseen) < 0.25 * off(model, plain, unseen)
    assert {line["algorithm"] for line in scaled(made)} == {"smooth_quant"} and not scaled(plain)
    assert made.fewbit_record.facts["preparing"]["kept"]


def test_nobody_smooths_for_floats_or_for_other_models():
    made = fewbit.quantize(planted("llama"), texts(5), preset="fp8")
    assert "preparing" not in made.fewbit_record.facts
    net = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 64)).eval()
    made = fewbit.quantize(net, [torch.randn(3, 8) for _ in range(6)], preset="w8a8")
    assert not scaled(made) and "preparing" not in made.fewbit_record.facts


HARM = """
import torch
from fewbit.algorithms._base import Rescaling

def solve(problem):
    factors = torch.logspace(-REACH, REACH, problem.outputs)
    linked = torch.zeros(problem.outputs, dtype=torch.bool)
    linked[[c for c in problem.channels if c >= 0]] = True
    return Rescaling(torch.where(linked, factors, 1.0), {"error": 0.0, "error_unscaled": 1.0})

solve.stage = "prepare"
solve.needs = ("low", "high", "square", "count")
"""


@pytest.mark.parametrize(
    ("rounding", "reach", "reason"),
    [
        ("scale_search", 0.1, "the answers would not be nearer to the float model's on the items kept aside"),
        ("gptq", 0.1, "the answers would not be nearer to the float model's on the items kept aside"),
        ("scale_search", 3, "would lose so much that they stayed in float"),
    ],
    ids=["answers", "answers after a walk", "floats"],
)
def test_what_does_harm_is_not_done(tmp_path, rounding, reach, reason):
    """An algorithm that claims to help is tried, and not one bit is changed by it."""
    (tmp_path / "harm.py").write_text(f"REACH = {reach}{HARM}")
    model, named = transformer("llama"), {"prepare": [f"{tmp_path}/harm.py:solve"]}
    made = compressed(model, rounding, count=6, advanced_parameters=named)
    plain = compressed(model, rounding, count=6)
    ours, theirs = made.state_dict(), plain.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    facts = made.fewbit_record.facts["preparing"]
    assert not facts["kept"]
    (line,) = (line for line in made.fewbit_record.lines if line["what"] == "not-scaled")
    assert reason in line["reason"] and line["error_unprepared"] == facts["error_unprepared"]


def test_too_few_items_to_judge_by():
    model = planted("llama", 40.0)
    made = fewbit.quantize(model, texts(3), preset="w8a8")
    (line,) = (line for line in made.fewbit_record.lines if line["what"] == "not-scaled")
    assert "too few items" in line["reason"] and line["algorithm"] == "smooth_quant"
    assert scaled(compressed(model, "awq", count=3))  # somebody asked for it


def test_a_model_without_a_link_is_told():
    net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 64)).eval()
    made = fewbit.compress_weights(net, dataset=[torch.randn(4, 16) for _ in range(6)], algorithm="awq")
    (line,) = (line for line in made.fewbit_record.lines if line["what"] == "not-scaled")
    assert "no producer's channels" in line["reason"] and line["algorithm"] == "awq"


def test_what_awq_needs(tmp_path):
    model = transformer("llama")
    with pytest.raises(UsageError, match="'awq' without data"):
        fewbit.compress_weights(model, mode="int4_sym", group_size=8, algorithm="awq")
    with pytest.raises(UsageError, match=r"'awq\+gptq' with statistics"):
        compressed(model, "awq+gptq", statistics=tmp_path / "moments")
    with pytest.raises(UsageError, match=r"gptq\+awq"):
        compressed(model, "gptq+awq")


def test_who_prepares_is_a_list_or_left_open():
    assert Options.read({"prepare": ["awq"]}, prepare=None).prepare == ("awq",)
    assert Options.read({"prepare": None}).prepare is None and Options.read({}).prepare == ()
    with pytest.raises(UsageError, match="awq"):
        Options.read({"prepare": "awq"})
