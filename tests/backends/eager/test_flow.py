# SPDX-License-Identifier: Apache-2.0
import torch
from torch import nn

from fewbit.backends.eager.catalogue import catalogue
from fewbit.backends.eager.flow import Flow, Piece
from fewbit.backends.eager.tracing import steps, trace


def pieces(flow, x):
    """The pieces a tensor is marked with."""
    marks = flow.marks(x)
    return {(piece.source, piece.channels) for place, piece in enumerate(flow.pieces) if marks >> place & 1}


def begun(channels=4, features=-1, shape=(2, 3)):
    flow = Flow()
    out = torch.zeros(*shape, channels) if features == -1 else torch.zeros(shape[0], channels, *shape[1:])
    flow.begin("a", out, features)
    return flow, out


ALL = {("a", (0, 1, 2, 3))}


def test_what_reads_an_output_is_marked_and_what_reads_that():
    flow, out = begun()
    with flow:
        other = torch.ones(2, 3, 4)
        near, far = out * 2, (out + other).relu().sum()
        unrelated = other * 2
    assert pieces(flow, out) == pieces(flow, near) == pieces(flow, far) == ALL
    assert pieces(flow, unrelated) == set()


def test_views_and_operations_in_place_mark_the_memory():
    flow, out = begun()
    with flow:
        buffer, into = torch.zeros(6, 4), torch.zeros(2, 3, 4)
        buffer[:2] = out[0, :2]
        torch.add(out, 1, out=into)
        gathered = torch.zeros(5, 4).index_add_(0, torch.tensor([1, 1, 4]), out[0])
    for x in (buffer, buffer[3:], into, gathered, gathered.T):
        assert pieces(flow, x) == ALL


def test_the_parts_of_a_fused_output_are_told_apart():
    flow, out = begun(channels=6)
    with flow:
        q, k, v = out.chunk(3, -1)
        scores = q @ k.mT
        heads = out.view(2, 3, 2, 3)[..., 2].clone()
        values = (scores @ v).transpose(1, 2)
    assert pieces(flow, q) == {("a", (0, 1))}
    assert pieces(flow, scores) == {("a", (0, 1)), ("a", (2, 3))}
    assert pieces(flow, values) == {("a", (0, 1)), ("a", (2, 3)), ("a", (4, 5))}
    assert pieces(flow, heads) == {("a", (2, 5))}


def test_the_channels_of_a_convolution():
    flow, out = begun(features=1)
    with flow:
        part, pixels = out[:, 1:3].relu(), out[..., :1].relu()
    assert pieces(flow, part) == {("a", (1, 2))} and pieces(flow, pixels) == ALL


def test_a_layer_begins_anew():
    flow, out = begun()
    with flow:
        hidden = out.relu()
    flow.begin("b", hidden, -1)
    with flow:
        last = hidden * 2
    assert pieces(flow, last) == {("b", (0, 1, 2, 3))}
    flow.begin(None, last, -1)
    assert pieces(flow, last) == set()


def test_a_number_of_python_is_out_of_sight():
    flow, out = begun()
    with flow:
        torch.ones(1).item()
        assert flow.leaked == 0
        bool(out.sum() > 0)
    assert flow.leaked


def test_inside_a_layer_nothing_is_followed():
    flow, out = begun()
    with flow:
        flow.inside += 1
        out.sum().item()
        made = out * 2
        flow.inside -= 1
    assert pieces(flow, made) == set() and flow.leaked == 0


def test_memory_that_is_used_again_carries_no_old_marks():
    flow, out = begun()
    with flow:
        for _ in range(50):
            temporary = out * 2
            place = temporary.data_ptr()
            del temporary
            fresh = torch.ones(2, 3, 4)
            assert fresh.data_ptr() != place and pieces(flow, fresh) == set()
            del fresh


def test_pieces_meet_in_a_channel():
    assert Piece("a", (0, 1)).meets(Piece("a", (1, 2)))
    assert not Piece("a", (0, 1)).meets(Piece("a", (2,))) and not Piece("a", (0,)).meets(Piece("b", (0,)))


def test_the_same_rows_are_the_same_input():
    flow, x = Flow(), torch.zeros(2, 3, 4)
    assert flow.identity(x, -1) == flow.identity(x.view(6, 4), -1)
    before = flow.identity(x, -1)
    assert before != flow.identity(x[:, :2], -1) and before != flow.identity(x.clone(), -1)
    x += 1
    assert before != flow.identity(x, -1)


def test_what_a_model_returns_has_escaped():
    class Returns(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            y = self.one(x)
            return {"out": self.two(y.relu()), "hidden": y[:, :2]}

    model = Returns()
    found = trace(model, steps(catalogue(model, {})), ((torch.randn(3, 4),), {}))
    escaped = {(p.source, p.channels) for place, p in enumerate(found.flow.pieces) if found.escaped >> place & 1}
    assert escaped == {("two", (0, 1, 2, 3)), ("one", (0, 1))}
    assert list(found.visits) == ["one", "two"] and found.visits["two"][0].reads


def test_a_visit_keeps_what_the_layer_read_then():
    class Changes(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.three = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            x = x * 1
            y = self.one(x) + self.two(x)
            x += 1
            return y + self.three(x)

    model, x = Changes(), torch.randn(3, 4)
    visits = trace(model, steps(catalogue(model, {})), ((x,), {})).visits
    one, two, three = (visits[name][0].call[0][0] for name in ("one", "two", "three"))
    assert one is two and torch.equal(one, x) and torch.equal(three, x + 1)
