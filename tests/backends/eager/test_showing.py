# SPDX-License-Identifier: Apache-2.0
"""What a run tells about activations without handing them over."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fewbit.backends.eager import showing
from fewbit.backends.eager.view import EagerView
from fewbit.model.points import Role
from fewbit.model.watch import Watch
from tiny_models import codes, tokens, transformer

MASK = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]])


def told(view, items, *needs, role=Role.input, sample=1024):
    """What is told about every point of a role: `{layer: [found]}`."""
    seen = {}

    def watch(layer):
        return Watch(frozenset(needs), lambda found, i: seen.setdefault(layer, []).append(dict(found)), sample)

    view.run(items, {p: watch(p.layer) for p in view.points(lambda p: p.role is role)})
    return seen


def mean_output(view, layer, found):
    """The mean output of a layer without bias, by taps: weights in fewbit's layout, group by group."""
    point = next(p for p in view.points() if p.layer == layer and p.role is Role.weight)
    out = []
    for weight, taps in zip(view.read(point).double().chunk(point.groups), found["taps"].chunk(point.groups)):
        out.append((weight * taps).flatten(1).sum(1))
    return torch.cat(out) / found["windows"]


CONVS = [
    (cls, axes)
    for axes, classes in enumerate([(nn.Conv1d, nn.ConvTranspose1d), (nn.Conv2d, nn.ConvTranspose2d)], 1)
    for cls in classes
] + [(nn.Conv3d, 3), (nn.ConvTranspose3d, 3)]


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(CONVS),
    sides=st.tuples(*[st.integers(4, 7)] * 3),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.sampled_from([0, 1, 2, "same", "valid"]),
    dilation=st.integers(1, 2),
    groups=st.integers(1, 3),
    mode=st.sampled_from(["zeros", "zeros", "reflect", "replicate", "circular"]),
    batch=st.sampled_from([None, 1, 3]),
)
def test_the_weight_times_taps_is_the_mean_output(kind, sides, kernel, stride, padding, dilation, groups, mode, batch):
    torch.manual_seed(0)
    (cls, axes), options = kind, {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if "Transpose" in cls.__name__:
        options["padding"] = padding if isinstance(padding, int) else 1
        options["output_padding"] = min(1, max(stride, dilation) - 1)
    else:
        options["padding_mode"] = mode
        options["stride"] = 1 if padding == "same" else stride
    layer = cls(2 * groups, 3 * groups, kernel, bias=False, **options)
    view = EagerView(nn.Sequential(layer))
    lead = () if batch is None else (batch,)
    x = torch.randn(*lead, 2 * groups, *sides[:axes])
    try:
        y = layer(x)
    except RuntimeError:  # nothing left of the output, or more padding than input
        return
    ((found,),) = told(view, [((x,), {})], "taps", "windows").values()
    by_channel = y.detach().double().movedim(-axes - 1, 0).flatten(1)
    assert found["taps"].dtype is torch.float64 and found["taps"].shape == (2 * groups, *(kernel,) * axes)
    assert int(found["windows"]) == by_channel.shape[1]
    torch.testing.assert_close(mean_output(view, "0", found), by_channel.mean(1), atol=1e-5, rtol=1e-4)


def test_a_transposed_convolution_that_is_told_its_size():
    class Up(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(2, 3, 3, stride=3, bias=False)

        def forward(self, x, place):
            return self.up(x, (11, 10)) if place else self.up(x, output_size=(2, 3, 11, 10))

    view, x = EagerView(Up()), torch.randn(2, 2, 3, 3)
    for place in (True, False):
        (found,) = told(view, [((x, place), {})], "taps", "windows")["up"]
        y = view.native()(x, place)
        assert int(found["windows"]) == 2 * 11 * 10
        torch.testing.assert_close(mean_output(view, "up", found).float(), y.mean((0, 2, 3)))


def test_a_layer_without_a_kernel_and_padding_of_the_text():
    view = EagerView(transformer("gpt2"))
    item = ((), {"input_ids": tokens(), "attention_mask": MASK})
    for layer, (found, *_) in told(view, [item], "taps", "windows", "sum", "count", "values").items():
        assert torch.equal(found["taps"], found["values"].double().sum(0)), layer
        assert torch.equal(found["sum"], found["taps"]) and found["windows"] == found["count"] == len(found["values"])
        assert int(found["count"]) == int(MASK.sum())


def test_a_convolution_with_a_forward_of_its_own_has_no_taps_and_a_note():
    class Same(nn.Conv2d):
        def forward(self, x):
            return super().forward(nn.functional.pad(x, (0, 1, 0, 1)))

    view = EagerView(nn.Sequential(Same(2, 2, 3), nn.Conv2d(2, 2, 1)))
    seen = told(view, [((torch.randn(1, 2, 5, 5),), {})], "taps", "windows", "sum")
    assert seen["0"][0].keys() == {"sum"} and seen["1"][0].keys() == {"sum", "taps", "windows"}
    ((where, what),) = view.notes
    assert where == "0" and "forward of its own" in what


def test_taps_of_a_layer_that_is_quantized():
    view = EagerView(nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, bias=False)))
    x = torch.randn(2, 2, 5, 5)
    (before,) = told(view, [((x,), {})], "taps")["0"]
    (point,) = view.points(lambda p: p.role is Role.weight)
    view.quantize(point, codes(view.read(point)))
    (found,) = told(view, [((x,), {})], "taps", "windows")["0"]
    assert torch.equal(found["taps"], before["taps"])
    torch.testing.assert_close(mean_output(view, "0", found).float(), view.native()(x).mean((0, 2, 3)))


def test_taps_are_of_inputs():
    view = EagerView(nn.Sequential(nn.Conv2d(2, 3, 3)))
    ((found,),) = told(view, [((torch.randn(1, 2, 5, 5),), {})], "taps", "count", role=Role.output).values()
    assert found.keys() == {"count"} and int(found["count"]) == 9


@pytest.mark.parametrize("mask", [None, MASK], ids=["plain", "padded"])
def test_layers_that_read_the_same_tensor_share_what_is_found(mask, monkeypatch):
    asked, own = [], showing.reductions
    monkeypatch.setattr(showing, "reductions", lambda x, needs, *rest: asked.append(needs) or own(x, needs, *rest))
    view = EagerView(transformer("llama"))
    item = ((), {"input_ids": tokens()} | ({} if mask is None else {"attention_mask": mask}))
    seen = told(view, [item], "low", "values", "taps")
    same = [seen[f"model.layers.0.self_attn.{name}_proj"][0] for name in "qkv"]
    assert all(found[name] is same[0][name] for found in same for name in same[0])
    other = seen["model.layers.0.self_attn.o_proj"][0]
    assert other["low"] is not same[0]["low"]
    reading = 2 * 4 + 1  # by layer: what q, k and v read, what o, gate and up, and down do; and the head
    assert len(asked) == reading < len(seen)


def test_a_tensor_changed_in_place_is_looked_at_again():
    class Changes(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.one(x) + self.two(x.add_(1))

    seen = told(EagerView(Changes()), [((torch.zeros(3, 2),), {})], "sum", "values")
    assert seen["one"][0]["sum"].tolist() == [0, 0] and seen["two"][0]["sum"].tolist() == [3, 3]


def test_who_asks_for_a_larger_sample_gets_it():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(8, 2), nn.Linear(8, 2)

        def forward(self, x):
            return self.one(x) + self.two(x)

    view, seen = EagerView(Both()), []
    watch = {
        p: Watch(frozenset({"sample"}), lambda found, i: seen.append(len(found["sample"])), size)
        for p, size in zip(view.points(lambda p: p.role is Role.input), (10, 300))
    }
    view.run([((torch.randn(100, 8),), {})], watch)
    assert 10 <= seen[0] < 40 and 300 <= seen[1] < 900
