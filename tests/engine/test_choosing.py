# SPDX-License-Identifier: Apache-2.0
"""Which algorithm settles a weight: named, by default, the user's own, with its parameters and what it asks to see."""

from __future__ import annotations

import pytest
import torch

from fewbit import Config, ModelQuantizer, QuantizationConfig, QuantizationSpec, UsageError
from fewbit.data.drawing import SEED, seeded_order
from fewbit.engine import solve
from small_models import images, mixed

OWN = """
import torch
from fewbit.algorithms import rtn

SEEN = []

def solve_plainly(problem, *, note="none"):
    SEEN.append((problem.name, note, dict(problem.statistics), dict(problem.held_out_statistics)))
    return rtn.solve(problem)

solve_plainly.needs = ("moments", "min_max")
LIST = []
"""


def config(spec: QuantizationSpec, **more: object) -> Config:
    return Config(layer_type_quant_config={"Linear": QuantizationConfig(weight=spec)}, **more)


INT4 = QuantizationSpec("int4", qscheme="per_channel", ch_axis=0)


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    return str(path)


def test_the_users_own_algorithm_gets_what_it_needs(own):
    from fewbit import registry

    spec = QuantizationSpec("int4", qscheme="per_channel", ch_axis=0, algorithm=f"{own}:solve_plainly")
    parameters = {"name": f"{own}:solve_plainly", "note": "hello"}
    quantizer = ModelQuantizer(config(spec, algo_config=[parameters]))
    quantizer.quantize_model(mixed(), images(6))
    seen = registry.load_reference(f"{own}:SEEN")
    assert [(name, note) for name, note, _, _ in seen] == [("first.weight", "hello"), ("second.weight", "hello")]
    for _, _, found, held_out in seen:
        assert set(found) == set(held_out) == {"moments", "min_max"} and "square" in found["moments"]
    assert quantizer.plan(mixed()).weights[0].algorithm.needs == ("moments", "min_max")


def test_what_is_seen_is_what_the_layer_reads(own):
    spec = QuantizationSpec("int4", qscheme="per_channel", ch_axis=0, algorithm=f"{own}:solve_plainly")
    model, read = mixed(), []
    handle = model.first.register_forward_pre_hook(lambda _, args: read.append(args[0].detach().double()))
    data = images(6)
    problems = []
    original = solve.Problem
    solve.Problem = lambda *args, **kwargs: problems.append(original(*args, **kwargs)) or problems[-1]
    try:
        with torch.no_grad():
            for x in data:
                model(x)
        handle.remove()
        ModelQuantizer(config(spec)).quantize_model(model, data)
    finally:
        solve.Problem = original
    drawn = [read[index] for index in seeded_order(6, 6, None, seed=SEED)]
    kept, judge = torch.cat([*drawn[:4], drawn[5]]).flatten(0, -2), drawn[4].flatten(0, -2)
    first = problems[0]
    torch.testing.assert_close(first.statistics["moments"]["square"], kept.square().sum(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(first.held_out_statistics["moments"]["square"], judge.square().sum(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(first.importance.flatten().double(), kept.square().mean(0), rtol=1e-6, atol=0)


def test_algo_config_is_the_default_and_holds_parameters(own):
    rtn = ModelQuantizer(config(INT4, algo_config="rtn"))
    rtn.quantize_model(mixed())
    assert {w.algorithm.name for w in rtn.plan(mixed()).weights} == {"rtn"}
    assert {line["algorithm"] for line in rtn.record.lines if line["what"] == "quantized"} == {"rtn"}
    searching = ModelQuantizer(config(INT4, algo_config=[{"name": "scale_search", "candidates": 32}]))
    assert {w.parameters["candidates"] for w in searching.plan(mixed()).weights} == {32}
    few = ModelQuantizer(config(INT4, algo_config=[{"name": "scale_search", "candidates": 1, "refits": 0}]))
    many, few = (q.quantize_model(mixed()) for q in (searching, few))
    assert not torch.equal(many.first.weight_scale, few.first.weight_scale)


def test_what_a_spec_names_comes_before_algo_config():
    named = QuantizationSpec("int4", qscheme="per_channel", ch_axis=0, algorithm="scale_search")
    observed = QuantizationSpec("int4", qscheme="per_channel", ch_axis=0, observer_cls="percentile")
    plans = [ModelQuantizer(config(spec, algo_config=["rtn"])).plan(mixed()) for spec in (named, observed)]
    assert plans[0].weights[0].algorithm.name == "scale_search"
    assert plans[1].weights[0].algorithm.name == "rtn" and plans[1].weights[0].parameters["observer"] == "percentile"


@pytest.mark.parametrize(
    ("spec", "more", "said"),
    [
        (INT4, {"algo_config": [{"name": "scale_search", "candidate": 3}]}, "candidates"),
        ({"algorithm": "scale_search", "observer_cls": "mse"}, {}, "asks no observer"),
        ({"algorithm": "nowhere.py:solve"}, {}, "no file"),
        ({"algorithm": "OWN:LIST"}, {}, "a list"),
        ({"algorithm": "OWN:nothing"}, {}, "nothing"),
    ],
)
def test_what_cannot_run_is_refused_while_planning(own, spec, more, said):
    if isinstance(spec, dict):
        spec = {name: value.replace("OWN", own) for name, value in spec.items()}
        spec = QuantizationSpec("int4", qscheme="per_channel", ch_axis=0, **spec)
    with pytest.raises(UsageError, match=said):
        ModelQuantizer(config(spec, **more)).plan(mixed())


@pytest.mark.parametrize(("name", "says"), [("awq", "'prepare': \\['awq'\\]"), ("bias_correction", "gives no codes")])
def test_an_algorithm_of_another_stage_is_refused(name, says):
    with pytest.raises(UsageError, match=says):
        ModelQuantizer(config(INT4, algo_config=name)).plan(mixed())
