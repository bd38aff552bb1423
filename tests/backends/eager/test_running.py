# SPDX-License-Identifier: Apache-2.0
import random

import numpy as np
import pytest
import torch
from torch import nn

from fewbit.backends.eager.view import EagerView
from fewbit.data.dataset import Dataset
from fewbit.errors import DataError, FewbitError, UsageError
from fewbit.model.points import Role
from fewbit.model.watch import Watch
from tiny_models import Encoder, ResNet, Tagger, shaken, tokens, transformer


def point(view, name):
    return next(p for p in view.points() if p.name == name)


def collect(view, items, *names):
    """What the watchers of some points are shown: `{name: [(values, item)]}`."""
    seen = {name: [] for name in names}
    watch = {point(view, name): values(lambda x, i, name=name: seen[name].append((x.clone(), i))) for name in names}
    count = view.run(items, watch)
    return seen, count


def values(take):
    """A watch that is shown all values."""
    return Watch(frozenset({"values"}), lambda found, item: take(found["values"], item))


def by_hook(model, layer, item):
    """The input and output of a layer, by a hook of the test's own."""
    kept = {}
    module = model.get_submodule(layer)
    handle = module.register_forward_hook(lambda m, args, out: kept.update(input=args[0], output=out))
    with torch.no_grad():
        model(*item[0], **item[1])
    handle.remove()
    return kept


def test_inputs_and_outputs_arrive_as_positions_by_features():
    model = shaken(ResNet())
    view = EagerView(model)
    items = [((torch.randn(2, 3, 8, 8),), {}), ((torch.randn(1, 3, 8, 8),), {})]
    seen, count = collect(view, items, "conv2:input", "conv2:output", "fc:input")
    assert count == 2 and [i for _, i in seen["conv2:input"]] == [0, 1]
    for role in ("input", "output"):
        expected = by_hook(model, "conv2", items[0])[role].permute(0, 2, 3, 1).flatten(0, 2)
        torch.testing.assert_close(seen[f"conv2:{role}"][0][0], expected)
    assert seen["fc:input"][1][0].shape == (1, 16)


def test_a_convolution_without_a_batch_axis():
    view = EagerView(nn.Sequential(nn.Conv2d(3, 4, 3)))
    seen, _ = collect(view, [((torch.randn(3, 5, 5),), {})], "0:input", "0:output")
    assert seen["0:input"][0][0].shape == (25, 3) and seen["0:output"][0][0].shape == (9, 4)


@pytest.mark.parametrize("name", ["llama", "bert", "gpt2"])
def test_padding_is_not_seen(name):
    model = transformer(name)
    view = EagerView(model)
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]])
    inputs = view.points(lambda p: p.role is Role.input)
    seen, _ = collect(view, [((), {"input_ids": tokens(), "attention_mask": mask})], *(p.name for p in inputs))
    for name_, shown in seen.items():
        (values, _), *_ = shown
        if "pooler" not in name_:
            item = ((), {"input_ids": tokens(), "attention_mask": mask})
            expected = by_hook(model, name_.partition(":")[0], item)["input"].reshape(2, 6, -1)[mask.bool()]
            torch.testing.assert_close(values, expected)
    assert view.notes == []


def test_tokens_gathered_by_routing_are_all_counted_and_a_note_says_so():
    class Routed(nn.Module):
        def __init__(self):
            super().__init__()
            self.expert = nn.Linear(4, 4)

        def forward(self, x, attention_mask):
            return self.expert(x.flatten(0, 1)[x.flatten(0, 1)[:, 0] > 0])

    view = EagerView(Routed())
    x, mask = torch.randn(2, 4, 4), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]])
    seen, _ = collect(view, [((x, mask), {})] * 2, "expert:input")
    assert len(seen["expert:input"][0][0]) == int((x[..., 0] > 0).sum())
    ((where, what),) = view.notes
    assert where == "expert" and "padding" in what


def test_key_padding_masks_and_positions_first():
    model = shaken(Encoder(norm_first=False))
    padded = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    view = EagerView(model)
    item = ((torch.randn(2, 5, 16),), {"src_key_padding_mask": padded})
    seen, _ = collect(view, [item], "encoder.layers.0.self_attn:input", "encoder.layers.1.linear2:input")
    values = seen["encoder.layers.0.self_attn:input"]
    assert len(values) == 1 and torch.equal(values[0][0], item[0][0][~padded]), "query, key and value are one tensor"
    assert seen["encoder.layers.1.linear2:input"][0][0].shape == (8, 24)


def test_attention_over_two_tensors_shows_both():
    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x, y):
            return self.attention(x, y, value=y)[0]

    seen, _ = collect(EagerView(Cross()), [((torch.zeros(1, 2, 8), torch.ones(1, 3, 8)), {})], "attention:input")
    assert [len(values) for values, _ in seen["attention:input"]] == [2, 3]


def test_recurrent_layers_and_packed_sequences():
    view = EagerView(nn.Sequential(nn.LSTM(5, 6)))
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 5), torch.randn(2, 5)])
    seen, _ = collect(view, [((packed,), {}), ((torch.randn(4, 2, 5),), {})], "0:input", "0:output")
    assert [len(values) for values, _ in seen["0:input"]] == [5, 8]
    assert [values.shape for values, _ in seen["0:output"]] == [(5, 6), (8, 6)]


def test_items_as_a_dataset_yields_them():
    model = nn.Sequential(nn.Linear(4, 2)).double()
    view = EagerView(model)
    items = Dataset([np.ones(4, np.float32), np.zeros(4, np.float32)]).inputs(model)
    seen, count = collect(view, items, "0:input")
    assert count == 2 and seen["0:input"][0][0].dtype == torch.float64


class Restless(nn.Module):
    """Changes everything a forward can change."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4, momentum=0.5)
        self.drop = nn.Dropout(0.5)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("table", None)

    def forward(self, x, fail=False):
        self.calls += 1
        self.table = torch.ones(3)
        x = self.linear(self.drop(self.norm(x))) + torch.randn(4) + random.random() + np.random.rand()
        if fail:
            raise ValueError("the sample is bad")
        return x


def state(model):
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    buffers = {name: None if t is None else t.clone() for m in model.modules() for name, t in m._buffers.items()}
    randoms = (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist())
    flags = [m.training for m in model.modules()]
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    return hooks, buffers, randoms, flags, grads, torch.is_grad_enabled(), torch.backends.mha.get_fastpath_enabled()


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


@pytest.mark.parametrize("fail", [False, True])
def test_everything_is_as_before(fail):
    model = Restless().train()
    model.drop.eval()
    model(torch.randn(3, 4)).sum().backward()
    view, before = EagerView(model), state(model)
    items = [((torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),), {"fail": fail})]
    watch = {point(view, "linear:input"): values(lambda x, i: None)}
    if fail:
        with pytest.raises(DataError, match=r"item 0.*ValueError: the sample is bad"):
            view.run(items, watch)
    else:
        view.run(items, watch)
    assert equal(before, state(model))


def test_runs_are_the_same_each_time_and_in_evaluation():
    model = Restless().train()
    view = EagerView(model)
    items = [((torch.randn(3, 4),), {})]
    one, two = (collect(view, items, "linear:output")[0]["linear:output"][0][0] for _ in range(2))
    assert torch.equal(one, two)


def test_the_key_value_cache_is_off_and_comes_back():
    model = transformer("llama")
    view = EagerView(model)
    used = []
    model.model.register_forward_hook(lambda m, args, out: used.append(out.past_key_values))
    assert model.config.use_cache
    view.run([((), {"input_ids": tokens()})], {})
    assert used == [None] and model.config.use_cache
    with pytest.raises(DataError):
        view.run([((), {"input_ids": "words"})], {})
    assert model.config.use_cache


def test_the_item_is_named_and_the_model_is_not_blamed_for_a_watcher():
    view = EagerView(nn.Sequential(nn.Linear(4, 4)))
    good, bad = ((torch.randn(2, 4),), {}), ((torch.randn(2, 5),), {})
    with pytest.raises(DataError, match="failed on item 2") as error:
        view.run([good, good, bad], {})
    assert isinstance(error.value.__cause__, RuntimeError)

    def watcher(x, i):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        view.run([good], {point(view, "0:input"): values(watcher)})

    def refuses(x, i):
        raise FewbitError("not finite", where="here")

    with pytest.raises(FewbitError, match="not finite"):
        view.run([good], {point(view, "0:input"): values(refuses)})
    assert not view.native()[0]._forward_pre_hooks


def test_layers_that_no_item_reaches_are_noted():
    class Skips(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.used(x)

    view = EagerView(Skips())
    seen, _ = collect(view, [((torch.randn(2, 4),), {})], "used:input", "unused:input")
    assert seen["unused:input"] == [] and view.notes == [("unused", "no item reached it (1 were run)")]


def test_weights_cannot_be_watched():
    view = EagerView(nn.Linear(4, 4))
    with pytest.raises(UsageError, match="cannot be watched"):
        view.run([], {point(view, "weight"): values(lambda x, i: None)})


def test_nothing_is_run_for_no_items():
    assert EagerView(shaken(Tagger())).run([], {}) == 0
