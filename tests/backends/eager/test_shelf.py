# SPDX-License-Identifier: Apache-2.0
"""Activations that wait in files come back bit by bit, and nothing is left of the files."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.backends.eager.test_walking import STACKED, items_for
from torch import nn

from fewbit.backends.eager.dozing import Doze, Traces
from fewbit.backends.eager.shelf import Shelf
from fewbit.backends.eager.view import EagerView
from fewbit.errors import UsageError
from tiny_models import transformer


@given(
    shape=st.lists(st.integers(1, 4), max_size=3).map(tuple),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]),
    turned=st.booleans(),
)
def test_a_tensor_comes_back(shape, dtype, turned):
    x = (torch.randn(shape) * 100).to(dtype)
    x = x.mT if turned and len(shape) > 1 else x
    with Shelf(0) as shelf:
        kept = shelf.keep(x)
        assert kept.apart == (x.nbytes > 0) and kept.size == x.nbytes
        found = kept.get()
        assert torch.equal(found, x) and found.stride() == x.stride() and found.dtype is x.dtype


def test_the_budget_is_kept_to_and_given_back(tmp_path):
    with Shelf(100, tmp_path) as shelf:
        first = shelf.keep(torch.ones(20))
        second = shelf.keep(torch.ones(10))
        assert not first.apart and second.apart and len(list(tmp_path.rglob("*"))) == 2
        del first, second
        assert shelf.left == 100 and len(list(tmp_path.rglob("*"))) == 1
        assert not shelf.keep(torch.ones(25)).apart
        wide = shelf.keep(torch.ones(1).expand(1000))  # no copy of it can have these strides
        assert not wide.apart and wide.get().stride() == (0,)
    assert not list(tmp_path.iterdir())
    with pytest.raises(KeyError), Shelf(0, tmp_path) as shelf:
        kept = shelf.keep(torch.ones(2))
        raise KeyError
    assert kept.apart and not list(tmp_path.iterdir())


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    with Shelf(0, tmp_path) as shelf:
        shelf.keep(torch.ones(2))
        monkeypatch.setattr(shelf, "_folder", tmp_path / "gone")
        with pytest.raises(UsageError, match="activation_budget"):
            shelf.keep(torch.ones(2))


def test_only_what_comes_from_the_item_is_put_away():
    layer = nn.Linear(64, 64)
    layer.table = torch.randn(64, 64)
    x, other = torch.randn(64, 64), torch.randn(64, 64)
    traces = Traces([layer])
    traces.begin(x, shared=True)
    with torch.no_grad(), traces:
        mine = layer(x) + layer.table
        view = mine[1:]
        apart = other * 2
        layer.table.add_(mine)  # it is the module's all the same
    before, tables = mine.clone(), layer.table.clone()
    with Shelf(0) as shelf:
        doze = Doze(traces, shelf)
        doze.sleep()
        assert mine.untyped_storage().nbytes() == 0 and view.untyped_storage().nbytes() == 0
        assert all(each.untyped_storage().nbytes() for each in (x, other, apart, layer.weight, layer.table))
        doze.wake()
    assert torch.equal(mine, before) and torch.equal(view, before[1:]) and torch.equal(layer.table, tables)


def caught(model, items, **how):
    """Everything a walk shows, with every weight changed once its stage is over."""
    view, found = EagerView(model), []
    weights = view.points(lambda p: p.role.value == "weight")
    with view.walk(items, **how) as walk:
        for block in walk.blocks:
            for stage in walk.through(block):
                for each in stage.inputs():
                    parts = (each.found, each.wanted, each.state, each.wanted_state)
                    found += [
                        (stage.layers, each.item, each.expert, *(None if x is None else x.clone() for x in parts))
                    ]
                for point in weights:
                    if {point.name, point.layer} & set(stage.layers):
                        view.write(point, view.read(point) * 1.1)
    return found


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "opt", "t5", "mixtral", "gpt_oss", "gemma"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_walk_shows_the_same_whatever_the_budget(name, dtype, tmp_path, monkeypatch):
    monkeypatch.setattr("fewbit.backends.eager.dozing._WORTH", 1)
    made, written = [], []
    write = Shelf.write
    monkeypatch.setattr(Shelf, "write", lambda self, x: written.append(len(x)) or write(self, x))
    for budget in (None, 0, 20_000):
        model = transformer(name, **STACKED.get(name, {})).to(dtype).eval()
        made.append(caught(model, items_for(name, 5), budget=budget, folder=tmp_path))
        assert bool(written) == (budget is not None) and not list(tmp_path.iterdir())
        written.clear()
    for one, other in zip(made[0] * 2, made[1] + made[2], strict=True):
        assert one[:3] == other[:3]
        for a, b in zip(one[3:], other[3:]):
            assert (a is None and b is None) or (a.dtype is b.dtype is dtype and torch.equal(a, b))


def test_a_walk_that_is_left_leaves_no_files(tmp_path):
    with (
        pytest.raises(KeyboardInterrupt),
        EagerView(transformer("llama").eval()).walk(items_for("llama"), budget=0, folder=tmp_path) as walk,
    ):
        for stage in walk.through(walk.blocks[0]):
            list(stage.inputs())
            assert list(tmp_path.iterdir())
            raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
