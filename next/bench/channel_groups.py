# SPDX-License-Identifier: Apache-2.0
"""Groups of channels found on exported graphs, compared with those the old version finds by noise trials.

    python bench/channel_groups.py --old ../.venv/bin/python [--models llama gpt2 …]

Both versions see the same modules (`tests/module_nets.py`: the models and cases of the old tests), each in its own
process and environment. Per model: pairs of producer and consumers that can be rescaled, with the channel map, that
both, only the old and only the new version find; families of other shapes (+: queries with keys, sums with several
producers); the residual stream and heads; groups that can be pruned. What the new version finds has passed the check.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from module_nets import DECODERS, NETS, Encoder, Tagger, decoder, filled, inputs_of, net, tokens

Pair = tuple[str, tuple[str, ...], tuple[int, ...]]
"""Producer, consumers, and for each input channel of the consumers the output channel of the producer or -1."""


class Case(nn.Module):
    """Two linear layers with something between them."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.one, self.two, self.other = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 6)
        self.norm, self.cell = nn.LayerNorm(6), nn.GRUCell(4, 6)
        self.name = name

    def forward(self, x: Tensor) -> Any:
        return CASES[self.name](self, x)


# The cases of the old tests: what a factor passes, what it does not pass, and readers that forbid a link.
CASES: dict[str, Callable[[Any, Tensor], Any]] = {
    "nothing": lambda m, x: m.two(m.one(x)),
    "relu": lambda m, x: m.two(m.one(x).relu()),
    "leaky relu": lambda m, x: m.two(functional.leaky_relu(m.one(x), 0.1)),
    "in place": lambda m, x: m.two(m.one(x).relu_().mul_(0.5)),
    "a gate of one number": lambda m, x: m.two(m.one(x) * torch.sigmoid(x[:, :1])),
    "cumsum": lambda m, x: m.two(m.one(x).cumsum(0)),
    "casts": lambda m, x: m.two(m.one(x).to(torch.float64).to(torch.float32)),
    "max over rows": lambda m, x: m.two(m.one(x).max(0, keepdim=True).values),
    "called twice": lambda m, x: m.two(m.one(x) + m.one(2 * x)),
    "both called twice": lambda m, x: m.two(m.one(x).relu()) + m.two(m.one(x + 1).relu()),
    "flipped": lambda m, x: m.two(m.one(x).flip(-1)),
    "two readers": lambda m, x: m.two(y := m.one(x).relu()) + m.other(y)[:, :3],
    "plus one": lambda m, x: m.two(m.one(x) + 1),
    "tanh": lambda m, x: m.two(m.one(x).tanh()),
    "gelu": lambda m, x: m.two(functional.gelu(m.one(x))),
    "clamp": lambda m, x: m.two(m.one(x).clamp(-10, 10)),
    "hardtanh": lambda m, x: m.two(functional.hardtanh(m.one(x), 0.0, 6.0)),
    "plus the input": lambda m, x: m.two(m.one(x) + x[:, :1]),
    "over its norm": lambda m, x: m.two(m.one(x) / m.one(x).norm()),
    "softmax": lambda m, x: m.two(m.one(x).softmax(-1)),
    "square": lambda m, x: m.two(m.one(x).square()),
    "a product with ones": lambda m, x: m.two(m.one(x) @ torch.ones(6, 6)),
    "returned too": lambda m, x: (m.two(y := m.one(x)), y),
    "around the consumer": lambda m, x: m.two(y := m.one(x)) + y[:, :3],
    "weight read elsewhere": lambda m, x: m.two(y := m.one(x)) + functional.linear(y, m.two.weight * 2),
    "a number of Python": lambda m, x: m.two(y := m.one(x)) * y.sum().item(),
    "a norm reads it": lambda m, x: m.two(y := m.one(x)) + m.norm(y).sum(),
    "another reads it bent": lambda m, x: m.two(y := m.one(x)) + m.other(y.tanh())[:, :3],
    "the consumer reads more": lambda m, x: m.two(m.one(x)) + m.two(torch.ones_like(x[:, :1]).expand(-1, 6)),
    "a decision": lambda m, x: m.two(torch.where(m.one(x).sum() > 0, 1.0, 2.0) * m.one(x)),
    "through numpy": lambda m, x: m.two(y := m.one(x)) + torch.from_numpy(y.numpy().copy())[:, :3],
    "state of a cell": lambda m, x: m.two(y := m.one(x)) + m.cell(x, y)[:, :3],
    "other orders": lambda m, x: m.two(y := m.one(x)) + m.other(y.flip(-1))[:, :3],
}


def build(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A model and the arguments of a call."""
    if name in DECODERS:
        return decoder(name), (), inputs_of(name)
    if name in NETS:
        model, x = net(name)
        return model, (x,), {}
    if name == "tagger":
        return filled(Tagger()), (tokens(),), {}
    if name == "encoder, norm last":
        return filled(Encoder(norm_first=False)), (torch.randn(2, 5, 16),), {}
    torch.manual_seed(0)
    return filled(Case(name)), (torch.randn(3, 4),), {}


MODELS = (*DECODERS, *NETS, "tagger", "encoder, norm last", *CASES)


def find_old(name: str) -> dict[str, Any]:
    """What the old version finds."""
    from fewbit.backends.eager.view import EagerView
    from fewbit.sparsity.shrinking.groups import find_groups
    from fewbit.sparsity.shrinking.tracing import trace

    model, args, kwargs = build(name)
    start = time.perf_counter()
    view = EagerView(model)
    links = view.structure((args, kwargs)).links
    seconds = time.perf_counter() - start
    try:
        stream = view.stream((args, kwargs))
        rotated = [stream.width, stream.centred, len(stream.norms), len(stream.heads)]
    except Exception as error:
        rotated = [type(error).__name__]
    try:
        pruned = {
            " + ".join(sorted(m.tensor for m in group.makers)): len(group.free)
            for group in find_groups(trace(model, (args, kwargs)))
        }
    except Exception as error:
        pruned = {"error": f"{type(error).__name__}: {error}"[:200]}
    pairs = [[link.producer, sorted(link.consumers), list(link.channels)] for link in links]
    return {"pairs": pairs, "rotated": rotated, "pruned": {k: v for k, v in pruned.items() if v}, "seconds": seconds}


def find_new(name: str) -> dict[str, Any]:
    """What the new version finds, each family checked on another sample."""
    from fewbit.backends.torch.graph import ModuleCall, edited_runner, module_graph
    from fewbit.graph.check import check_families
    from fewbit.graph.heads import find_value_heads
    from fewbit.graph.pruning import prune_families
    from fewbit.graph.residual import find_residual_stream
    from fewbit.graph.scaling import scale_families

    model, args, kwargs = build(name)
    start = time.perf_counter()
    graph = module_graph(model, ModuleCall(args, kwargs))
    families = scale_families(graph)
    other = ModuleCall(tuple(_other(x) for x in args), {key: _other(x) for key, x in kwargs.items()})
    accepted, rejected = check_families(families, edited_runner(model, other))
    seconds = time.perf_counter() - start
    pairs, more = [], []
    for family in accepted:
        pair = _as_pair(family)
        if pair is None:
            more.append(str(family))
        else:
            pairs.append(pair)
    try:
        stream = find_residual_stream(graph)
        rotated = [stream.width, stream.centered, len(stream.norms), len(find_value_heads(graph))]
    except Exception as error:
        rotated = [type(error).__name__]
    pruned = {}
    for family in prune_families(graph):
        nodes = {use.constant: graph.by_name[use.node] for use in family.of_role("out")}
        dense = sorted(name for name, node in nodes.items() if node.attrs.get("groups", 1) == 1)
        if not family.inexact:
            pruned[" + ".join(dense)] = family.size
    return {
        "pairs": pairs,
        "more": more,
        "rejected": [str(entry.family) for entry in rejected],
        "rotated": rotated,
        "pruned": pruned,
        "notes": list(graph.notes),
        "seconds": seconds,
    }


def _other(x: Tensor) -> Tensor:
    return torch.randn(x.shape) if x.is_floating_point() else x.flip(-1)


def _as_pair(family: Any) -> Any:
    """A family as the old version writes it: one module that produces, all modules that read."""
    producers, consumers = family.of_role("out"), family.of_role("in")
    owners = {_owner(use.constant) for use in consumers}
    if len(producers) != 1 or not consumers or _owner(producers[0].constant) in owners:
        return None
    channel = {int(group): index for index, group in reversed(list(enumerate(producers[0].channels))) if group >= 0}
    maps = {tuple(channel.get(int(group), -1) for group in use.channels) for use in consumers}
    if len(maps) != 1:
        return None
    return [_owner(producers[0].constant), sorted(owners), list(maps.pop())]


def _owner(constant: str) -> str:
    return constant.rpartition(".")[0]


def compare(old: dict[str, Any], new: dict[str, Any]) -> tuple[list[Pair], list[Pair], int]:
    """Pairs that only the old version has, pairs that only the new one has, and how many both have."""
    before, after = ({(p, tuple(c), tuple(m)) for p, c, m in side["pairs"]} for side in (old, new))
    return sorted(before - after), sorted(after - before), len(before & after)


def explain(model: str, pair: Pair, new: dict[str, Any], *, lost: bool) -> str:
    """Why only one version has a pair."""
    producer, consumers, _ = pair
    if not lost:
        modules = dict(build(model)[0].named_modules())
        if any(isinstance(modules[name], nn.BatchNorm2d) for name in consumers):
            return "batch norms are no readers to the trials; folding removes this pair"
        if any(name.startswith(f"{producer}.") for name in consumers):
            return "inside attention that is one layer to the trials"
        if isinstance(modules[producer], nn.Embedding):
            return "embeddings are no producers to the trials"
        return "a parameter outside of layers reads it" if "" in consumers else "the trials miss it"
    if any("lstm" in name for name in consumers):
        return "recurrent layers are opaque operators"
    covering = [entry for entry in new["more"] if producer in entry]
    return f"part of a larger family: {covering[0]}" if covering else "not explained"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", help="python of the old version's environment")
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--as-old", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_old:
        print(json.dumps({name: find_old(name) for name in options.models}))
        return
    command = [options.old, __file__, "--as-old", "--models", *options.models]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    old = json.loads(output.splitlines()[-1])
    unexplained = 0
    totals = [0, 0, 0, 0]
    print(
        f"{'model':26} both  old  new   +   old s  new s  rotation (width, centered, norms, heads) old / new; pruning"
    )
    for name in options.models:
        new = find_new(name)
        lost, gained, both = compare(old[name], new)
        pruned = _compare_pruning(old[name]["pruned"], new["pruned"])
        totals = [total + n for total, n in zip(totals, (both, len(lost), len(gained), len(new["more"])), strict=True)]
        print(
            f"{name:26} {both:4} {len(lost):4} {len(gained):4} {len(new['more']):3}  {old[name]['seconds']:6.2f} "
            f"{new['seconds']:6.2f}  {old[name]['rotated']} / {new['rotated']}; {pruned}"
        )
        for pair in lost:
            reason = explain(name, pair, new, lost=True)
            unexplained += reason == "not explained"
            print(f"    only old: {pair[0]} -> {', '.join(pair[1])}: {reason}")
        for pair in gained:
            print(f"    only new: {pair[0]} -> {', '.join(pair[1])}: {explain(name, pair, new, lost=False)}")
        for text in new["rejected"]:
            print(f"    rejected by the check: {text}")
        for text in new["notes"]:
            print(f"    note: {text}")
    print(
        f"{'all':26} {totals[0]:4} {totals[1]:4} {totals[2]:4} {totals[3]:3}  {unexplained} lost without a known cause"
    )


def _compare_pruning(old: dict[str, Any], new: dict[str, Any]) -> str:
    if "error" in old:
        return f"old: {old['error']}"
    if old == new:
        return f"{len(old)} equal groups"
    only = [{k: v for k, v in one.items() if other.get(k) != v} for one, other in ((old, new), (new, old))]
    return f"{len(old.items() & new.items())} equal, only old {only[0]}, only new {only[1]}"


if __name__ == "__main__":
    main()
