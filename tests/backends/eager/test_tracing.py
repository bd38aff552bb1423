# SPDX-License-Identifier: Apache-2.0
import torch
from torch import nn

from fewbit.backends.eager.catalogue import catalogue
from fewbit.backends.eager.tracing import steps
from tiny_models import transformer


class Own(nn.Module):
    """A layer with a parameter of its own and others inside."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(4))
        self.inner = nn.Linear(4, 4)


def test_steps_are_layers_that_lie_in_no_other():
    model = nn.ModuleDict(
        {"own": Own(), "attention": nn.MultiheadAttention(4, 2), "a": nn.Linear(4, 4), "ab": nn.Linear(4, 4)}
    )
    assert list(steps(catalogue(model, {}))) == ["own.inner", "attention", "a", "ab"]
    assert list(steps(catalogue(nn.MultiheadAttention(4, 2), {}))) == [""], "the model itself"


def test_steps_by_their_definition():
    for name in ("opt", "mixtral", "t5"):
        found = catalogue(transformer(name), {})
        taken = []
        for layer in found.layers.values():
            if layer.called and not layer.inside and not any(layer.name.startswith(f"{outer}.") for outer in taken):
                taken.append(layer.name)
        assert list(steps(found)) == taken
