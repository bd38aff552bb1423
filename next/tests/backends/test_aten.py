# SPDX-License-Identifier: Apache-2.0
"""Exported programs as neutral graphs: executed in numpy they compute what the module does."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from fewbit.backends._aten import read_graph_module, read_program, tied_constants  # noqa: E402
from fewbit.backends.torch.graph import ModuleCall, export_module  # noqa: E402
from fewbit.graph.check import relative_difference  # noqa: E402
from fewbit.graph.layers import layers  # noqa: E402
from fewbit.graph.pruning import prune_families  # noqa: E402
from fewbit.graph.scaling import scale_edits, scale_families  # noqa: E402
from module_nets import NETS, Tagger, filled, net  # noqa: E402
from neutral_graphs import apply, removed, run  # noqa: E402


def graph_of(module, *args, **kwargs):
    graph = read_program(export_module(module, ModuleCall(args, kwargs)))
    graph.validate()
    return graph


@pytest.mark.parametrize("name", NETS)
def test_a_graph_computes_what_its_module_does(name):
    """And rescaled by all its families, or without half of its channels, what it should."""
    model, x = net(name)
    model, x = model.double(), x.double()
    graph = graph_of(model, x)
    assert not graph.census()[1], "an operator was not understood"
    sample, expected = {graph.inputs[0]: x.numpy()}, [model(x).detach().numpy()]
    assert relative_difference(run(graph, sample), expected) < 1e-12
    random = np.random.default_rng(0)
    edits = [e for f in scale_families(graph) for e in scale_edits(f, np.exp(random.uniform(-1, 1, f.size)))]
    assert edits and relative_difference(run(apply(graph, edits), sample), expected) < 1e-12
    assert relative_difference(run(apply(graph, edits[1:]), sample), expected) > 1e-4
    if any(not family.inexact for family in prune_families(graph)):
        removed(graph, sample)


MASK = torch.eye(4, dtype=torch.bool)
_NUMBERS: dict = {}


def numbers(*shape):
    """A tensor that is not an input: export makes it a constant of the program."""
    if shape not in _NUMBERS:
        _NUMBERS[shape] = torch.linspace(-1, 2, int(np.prod(shape)), dtype=torch.float64).reshape(shape)
    return _NUMBERS[shape]


OPERATORS = {
    "stack": lambda x: torch.stack([x, x * 2], 1),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "negative select": lambda x: x[:, -1],
    "repeat": lambda x: x.repeat(2, 1, 3),
    "tile in the middle": lambda x: x.repeat(1, 2, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, -1),
    "addmm with factors": lambda x: torch.addmm(x[0], x[1], numbers(4, 4), beta=2, alpha=0.5),
    "baddbmm": lambda x: torch.baddbmm(x, x, numbers(2, 4, 4), beta=1, alpha=3),
    "sub with a factor": lambda x: torch.sub(x, x.flip(1), alpha=2),
    "rsub": lambda x: 3 - x,
    "masked_fill": lambda x: x.masked_fill(MASK, 7.0) * 1,
    "maximum": lambda x: torch.maximum(x, -x),
    "max of two": lambda x: torch.max(x, x * x),
    "max over an axis": lambda x: x.max(1, keepdim=True).values,
    "var": lambda x: x.var(2),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1, keepdim=True),
    "sum of all": lambda x: x.sum(),
    "hardtanh": lambda x: functional.hardtanh(x, -0.5, 0.5),
    "clamp": lambda x: x.clamp(max=0.2),
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.3),
    "roll": lambda x: torch.roll(x, 3, 2),
    "pixel_unshuffle": lambda x: functional.pixel_unshuffle(x[None], 2),
    "channel_shuffle": lambda x: functional.channel_shuffle(x.reshape(1, 4, 2, 4), 2),
    "index_select": lambda x: x.index_select(1, torch.tensor([2, 0])),
    "one index": lambda x: x[:, torch.tensor([2, 0])],
    "reflect": lambda x: functional.pad(x, (1, 1), mode="reflect"),
    "pad with a number": lambda x: functional.pad(x, (0, 0, 1, 2), value=0.5),
    "cumsum": lambda x: x.cumsum(1),
    "T": lambda x: x[0].t() @ x[1],
    "matrix and vector": lambda x: torch.mv(x[0], x[1, 0]),
    "a long chain in place": lambda x: (x * 1).relu_().mul_(0.5).add_(x),
    "in place on a view": lambda x: _write_to_a_part(x),
    "conv1d same": lambda x: functional.conv1d(x, numbers(3, 4, 3), padding="same", dilation=2),
    "conv_transpose1d": lambda x: functional.conv_transpose1d(x, numbers(4, 3, 3), stride=2, padding=1),
    "conv3d": lambda x: functional.conv3d(x[None, None], numbers(2, 1, 1, 2, 2), stride=(1, 2, 1)),
    "max_pool1d": lambda x: functional.max_pool1d(x, 2, padding=1, stride=1),
    "weight of a scaled norm": lambda x: functional.rms_norm(x, (4,), numbers(4), eps=1e-3),
    "split": lambda x: torch.cat(x.split([1, 3], 2)[::-1], 2),
    "unbind": lambda x: x.unbind(1)[2],
    "movedim": lambda x: x.movedim(0, -1),
    "several axes moved": lambda x: x.movedim((0, 2), (1, 0)),
}


def _write_to_a_part(x):
    y = x * 1
    y[:, 0] += 2
    return y * y


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name):
    class Single(nn.Module):
        def forward(self, x):
            return OPERATORS[name](x)

    x = torch.randn(2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = [OPERATORS[name](x).numpy()]
    graph = graph_of(Single(), x)
    if name == "in place on a view":  # what is not understood is at least a node
        assert set(graph.census()[1]) == {"copy", "select_scatter"}
        return
    assert not graph.census()[1]
    assert relative_difference(run(graph, {"x": x.numpy()}), expected) < 1e-6


def test_recurrent_layers_are_opaque_and_fix_what_they_read():
    for kind in ("LSTM", "GRU"):
        graph = graph_of(filled(Tagger(kind)), torch.tensor([[4, 5, 6], [7, 8, 9]]))
        opaque = [node for node in graph.nodes if node.native == kind.lower()]
        assert opaque[0].op == "opaque" and "lstm.weight_hh_l1_reverse" in opaque[0].reads
        (family,) = scale_families(graph)
        assert family.uses[0].constant == "embed.weight" and family.uses[1].constant == "inner.weight"


def test_control_flow_is_opaque_and_fixes_what_its_branches_read():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x):
            hidden = self.one(x)
            return torch.cond(x.sum() > 0, lambda h: self.two(h), lambda h: h[:, :3] * 1.0, (hidden,))

    graph = graph_of(Branches(), torch.ones(2, 4))
    (node,) = [node for node in graph.nodes if node.native == "cond"]
    assert {"two.weight", "linear"} <= set(node.reads)
    assert scale_families(graph) == ()


def test_shapes_of_dynamic_axes_have_names_and_an_example():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        program = torch.export.export(model, (torch.ones(5, 4),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    graph = read_program(program)
    value = graph.values[graph.inputs[0]]
    assert isinstance(value.shape[0], str) and value.shape[1] == 4 and value.dims == (5, 4)
    assert len(scale_families(graph)) == 1


def test_constants_have_the_names_of_the_module():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.register_buffer("table", torch.arange(4.0), persistent=False)
            self.register_buffer("saved", torch.arange(4.0))
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, weight):  # an input with the name of a parameter
            return self.inner(weight * self.weight + self.table * self.saved)

    graph = graph_of(Named(), torch.ones(2, 4))
    stored = {name: constant.stored for name, constant in graph.constants.items()}
    assert stored == {"inner.weight": True, "inner.bias": True, "table": False, "saved": True, "weight": True}
    assert graph.inputs == ("weight:0",)
    graph = read_program(export_module(Named(), ModuleCall((torch.ones(2, 4),))), prefix="blocks.0.")
    assert "blocks.0.inner.weight" in graph.constants and graph.inputs == ("blocks.0.weight:0",)
    assert layers(graph)[0].name == "blocks.0.inner"


def test_tied_weights_are_one_constant_and_overlapping_ones_are_not_edited():
    base = torch.randn(4, 6)
    tied = tied_constants({"a": (base, True), "b": (base, True), "c": (torch.ones(2), True)})
    assert tied["a"] is tied["b"] and tied["a"].aliases == ("b",) and tied["a"].stored
    turned = tied_constants({"a": (base, True), "b": (base.T, True), "c": (base[:2], True)})
    assert not any(constant.stored for constant in turned.values())


def test_half_precision_constants_are_read_as_float32():
    weight = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    constant = tied_constants({"w": (weight, True)})["w"]
    assert (
        constant.dtype == "bfloat16" and constant.read().dtype == np.float32 and constant.read().tolist() == [1.5, -2]
    )


def test_an_unlifted_program_reads_alike():
    model, x = net("mobile")
    program = export_module(model, ModuleCall((x,)))
    lifted, unlifted = read_program(program), read_graph_module(program.module())
    assert [node.op for node in lifted.nodes] == [node.op for node in unlifted.nodes]
    assert set(lifted.constants) == set(unlifted.constants)
    assert [str(f) for f in scale_families(lifted)] == [str(f) for f in scale_families(unlifted)]
