# SPDX-License-Identifier: Apache-2.0
"""One small network under both views, eager PyTorch and ONNX: the engine shall not know which it has."""

from __future__ import annotations

import torch
from onnx import helper
from torch import Tensor, nn

from fewbit.backends.eager.view import EagerView
from fewbit.backends.graph.view import GraphView
from onnx_graphs import model

VIEWS = ["eager", "graph"]


class Net(nn.Module):
    """A padded convolution, a depthwise one without a bias, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(2, 8, 3, padding=1)
        self.b = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.c = nn.Linear(8 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x).relu()).relu().flatten(1))


def net(seed: int = 0, spread: float = 0.0) -> Net:
    """A random network; with `spread` its channels differ in size by `10 ** spread`, as those of real ones may."""
    torch.manual_seed(seed)
    made = Net()
    with torch.no_grad():
        made.a.bias += 0.5
        factors = torch.logspace(-spread / 2, spread / 2, 8)[torch.randperm(8)]
        made.a.weight *= factors.reshape(-1, 1, 1, 1)
        made.a.bias *= factors
        made.b.weight *= 3
        out = torch.logspace(spread / 2, -spread / 2, 8)[torch.randperm(8)]
        made.b.weight *= (out / factors).reshape(-1, 1, 1, 1)
        made.c.weight /= out.repeat_interleave(4)
    return made.eval()


def view_of(kind: str, made: Net):
    """The network under a view of its own."""
    if kind == "eager":
        return EagerView(made).copy()
    weights = {name: tensor.detach().numpy() for name, tensor in made.state_dict().items()}
    weights["c.weight"] = weights["c.weight"].T.copy()
    nodes = [
        helper.make_node("Conv", ["x", "a.weight", "a.bias"], ["1"], name="a", pads=[1] * 4),
        helper.make_node("Relu", ["1"], ["2"]),
        helper.make_node("Conv", ["2", "b.weight"], ["3"], name="b", pads=[1] * 4, group=8),
        helper.make_node("Relu", ["3"], ["4"]),
        helper.make_node("Flatten", ["4"], ["5"]),
        helper.make_node("MatMul", ["5", "c.weight"], ["6"], name="c"),
        helper.make_node("Add", ["6", "c.bias"], ["y"]),
    ]
    return GraphView.of(model(nodes, {"x": ["n", 2, 2, 2]}, {"y": None}, weights))


def items_of(kind: str, count: int, seed: int = 1):
    """Items with four samples each, all values above zero: means that rounding can move."""
    pictures = torch.rand(count, 4, 2, 2, 2, generator=torch.Generator().manual_seed(seed))
    return [((x,), {}) if kind == "eager" else {"x": x.numpy()} for x in pictures]


def error(wanted, found) -> float:
    """The energy of the difference over that of the wanted answers."""
    both = zip(list(wanted), list(found), strict=True)
    pairs = [(a.double(), b.double()) for ours, theirs in both for a, b in zip(ours, theirs, strict=True)]
    return float(sum((a - b).square().sum() for a, b in pairs) / sum(a.square().sum() for a, _ in pairs))
