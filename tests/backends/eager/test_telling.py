# SPDX-License-Identifier: Apache-2.0
"""What a view is told of stacks is what a run would have shown it."""

import torch
from transformers import MixtralConfig, MixtralForCausalLM

from fewbit.backends.eager.telling import tell_stacks
from fewbit.backends.eager.view import EagerView
from fewbit.model.points import Role

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 64, "num_local_experts": 3,
}  # fmt: skip


def weights(view):
    return {(point.name, point.shape, point.stack, point.op) for point in view.points(lambda p: p.role is Role.weight)}


def test_an_empty_model_shows_what_a_run_shows():
    torch.manual_seed(0)
    whole = EagerView(MixtralForCausalLM(MixtralConfig(**SIZES)).eval())
    with torch.device("meta"):
        empty = EagerView(MixtralForCausalLM(MixtralConfig(**SIZES)).eval())
    asked = {}
    left = tell_stacks(empty, lambda name, shape: asked.setdefault(name, shape) is not None)
    assert left == [] and weights(empty) == weights(whole)
    prefix = "model.layers.0.mlp.experts."
    assert asked == {f"{prefix}gate_up_proj": (3, 96, 32), f"{prefix}down_proj": (3, 32, 48)}


def test_stacks_that_nobody_knows_are_named_and_left_alone():
    with torch.device("meta"):
        view = EagerView(MixtralForCausalLM(MixtralConfig(**SIZES)).eval())
    left = tell_stacks(view, lambda name, shape: name.endswith("down_proj"))
    assert left == ["model.layers.0.mlp.experts.gate_up_proj"]
    names = [point.name for point in view.points()]
    assert "model.layers.0.mlp.experts.down_proj" in names and left[0] not in names
