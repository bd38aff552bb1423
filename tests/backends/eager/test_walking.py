# SPDX-License-Identifier: Apache-2.0
"""A walk: what is caught on the way is what the model as it is by now reads, and nothing is left behind."""

import threading

import pytest
import torch
from tests.tiny_models import transformer
from torch import nn

from fewbit.backends.eager.view import EagerView
from fewbit.model.ops import EXPERTS
from fewbit.model.points import Role

MODELS = ("llama", "qwen3", "gemma", "phi", "phi3", "neox", "bert", "opt", "gpt2", "t5", "mixtral", "gpt_oss")
STACKED = {"t5": {"num_layers": 2}, "mixtral": {"num_hidden_layers": 2},
           "gpt_oss": {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}}  # fmt: skip


def items_for(name, count=3):
    draw = torch.Generator().manual_seed(0)
    found = []
    for index in range(count):
        ids = torch.randint(3, 40, (2, 8 + index), generator=draw)
        mask = torch.ones_like(ids)
        mask[0, :index] = 0
        more = {"decoder_input_ids": ids[:, :6]} if name == "t5" else {}
        found.append(((), {"input_ids": ids, "attention_mask": mask, **more}))
    return found


def watched(model, names, item):
    """What layers read in a plain run, their first inputs, by a hook of our own."""
    found = {}

    def hook(name):
        def before(module, args, kwargs):
            found.setdefault(name, (args or tuple(kwargs.values()))[0].detach().clone())

        return before

    handles = [model.get_submodule(n).register_forward_pre_hook(hook(n), with_kwargs=True) for n in names]
    with torch.no_grad():
        model(*item[0], **{**item[1], "use_cache": False})
    for handle in handles:
        handle.remove()
    return found


def rows(x, item):
    """Without padding, where it has positions of the mask."""
    mask = item[1]["attention_mask"].bool()
    if x.shape[:2] == mask.shape and "decoder_input_ids" not in item[1]:
        return x[mask]
    return x.reshape(-1, x.shape[-1])


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_is_met_with_the_inputs_it_has(name):
    model = transformer(name, **STACKED.get(name, {})).eval()
    view, items = EagerView(model), items_for(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    met = {}
    with view.walk(items) as walk:
        assert len(walk.blocks) > 2 and walk.blocks[-1] == ""
        for block in walk.blocks:
            for stage in walk.through(block):
                assert all(layer.startswith(block) for layer in stage.layers)
                for given in stage.inputs():
                    assert torch.equal(given.found, given.wanted)  # nothing was changed
                    assert (given.expert is not None) == ("experts" in stage.layers[0])
                    if given.expert is None:  # what experts read is looked at in test_routing.py
                        met.update({(layer, given.item): given.found for layer in stage.layers})
    fed = {p.layer for p in view.points(lambda p: p.role is Role.input and p.op is not EXPERTS)}
    compared = 0
    for index, item in enumerate(items):
        seen = watched(model, fed, item)
        for layer, x in seen.items():
            mine = met.get((layer, index))
            assert mine is not None, layer
            wanted = rows(x, item)
            if mine.shape == wanted.shape:
                compared += 1
                assert torch.allclose(mine, wanted, atol=1e-5), layer
    assert compared > 0.6 * len(met)  # the others are padded another way than `rows` knows
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any("forward" in vars(module) or module._forward_pre_hooks for module in model.modules())


def test_the_walk_goes_on_through_what_a_layer_became():
    model = transformer("llama").eval()
    view, items = EagerView(model), items_for("llama")
    twin = transformer("llama").eval()
    caught = {}
    with view.walk(items) as walk:
        for block in walk.blocks:
            for stage in walk.through(block):
                for given in stage.inputs():
                    caught[stage.layers[0], given.item] = given
                for layer in stage.layers:
                    point = next(p for p in view.points(lambda p: p.role is Role.weight) if p.layer == layer)
                    view.write(point, view.read(point) * 1.1)
    names = [layer for layer, item in caught if item == 2]
    found, wanted = watched(model, names, items[2]), watched(twin, names, items[2])
    for layer in names:
        given = caught[layer, 2]
        assert torch.allclose(given.found, rows(found[layer], items[2]), atol=1e-4), layer
        assert torch.allclose(given.wanted, rows(wanted[layer], items[2]), atol=1e-4), layer
    assert not torch.allclose(caught["lm_head", 2].found, caught["lm_head", 2].wanted)


def test_layers_that_add_to_the_state_show_it():
    model = transformer("llama").eval()
    items, states = items_for("llama", 1), {}
    with EagerView(model).walk(items) as walk:
        for block in walk.blocks:
            for stage in walk.through(block):
                for given in stage.inputs():
                    states.update({layer: given.state for layer in stage.layers if given.state is not None})
    assert sorted(states) == [f"model.layers.{i}.{n}" for i in (0, 1) for n in ("mlp.down_proj", "self_attn.o_proj")]
    read = watched(model, ["model.layers.1", "model.layers.1.post_attention_layernorm"], items[0])
    assert torch.allclose(states["model.layers.1.self_attn.o_proj"], rows(read["model.layers.1"], items[0]))
    after = rows(read["model.layers.1.post_attention_layernorm"], items[0])
    assert torch.allclose(states["model.layers.1.mlp.down_proj"], after)


def test_layers_that_read_the_same_are_one_stage():
    with EagerView(transformer("llama").eval()).walk(items_for("llama", 1)) as walk:
        first = [stage.layers for stage in walk.through(walk.blocks[0])]
    attention, mlp = "model.layers.0.self_attn", "model.layers.0.mlp"
    assert first == [
        (f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj"),
        (f"{attention}.o_proj",),
        (f"{mlp}.gate_proj", f"{mlp}.up_proj"),
        (f"{mlp}.down_proj",),
    ]


def test_a_model_without_blocks_is_one():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
    x = torch.randn(5, 4)
    with EagerView(model).walk([((x,), {})], wanted=False) as walk:
        assert walk.blocks == ("",)
        stages = {stage.layers: list(stage.inputs()) for stage in walk.through("")}
    assert torch.equal(stages[("0",)][0].found, x) and stages[("0",)][0].wanted is None
    assert torch.equal(stages[("2",)][0].found, model[1](model[0](x)))


def test_leaving_in_the_middle_leaves_nothing():
    model, before = transformer("llama").eval(), threading.active_count()
    with pytest.raises(KeyboardInterrupt), EagerView(model).walk(items_for("llama")) as walk:
        for stage in walk.through(walk.blocks[0]):
            next(stage.inputs())
            raise KeyboardInterrupt
    assert threading.active_count() == before
    assert not any("forward" in vars(module) or module._forward_pre_hooks for module in model.modules())


def test_a_model_that_fails_on_the_way_says_so():
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            x = self.first(x)
            if x.shape[0] == 3:
                raise ValueError("three")
            return self.second(x)

    items = [((torch.randn(n, 4),), {}) for n in (2, 3)]
    with pytest.raises(Exception, match="three"), EagerView(Failing()).walk(items) as walk:
        for stage in walk.through(""):
            list(stage.inputs())


class Choosing(nn.Module):
    """Sends on what has a first value above zero."""

    def __init__(self):
        super().__init__()
        self.mix, self.expert = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        x = self.mix(x)
        out = torch.zeros_like(x)
        mine = x[..., 0] > 0
        out[mine] = self.expert(x[mine])
        return x + out


@pytest.mark.parametrize("build", [Choosing, lambda: nn.Sequential(Choosing(), Choosing())])
def test_of_positions_that_only_one_model_chooses_nothing_is_wanted(build):
    torch.manual_seed(0)
    model = build().eval()
    view, x = EagerView(model), torch.randn(1, 6, 4)
    first = next(point for point in view.points() if point.name.endswith("mix.weight"))
    bias = next(point for point in view.points() if point.name.endswith("mix.bias"))
    with view.walk([((x,), {})]) as walk:
        for stage in walk.through(walk.blocks[0]):
            (given,) = stage.inputs()
            if stage.layers == (first.layer,):
                view.write(bias, torch.tensor([100.0, 0, 0, 0]))  # from here on all are chosen
    assert given.found.shape == (6, 4) and torch.equal(given.wanted, given.found)
