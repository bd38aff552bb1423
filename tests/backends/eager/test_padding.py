# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from fewbit.backends.eager.padding import Positions, masks_of
from fewbit.backends.eager.view import EagerView
from fewbit.model.ops import LINEAR
from fewbit.model.points import Role
from fewbit.model.watch import Watch
from tiny_models import transformer

MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])
KEPT = [(0, 0), (0, 1), (1, 0)]


class Model(nn.Module):
    def forward(self, x, attention_mask=None, **kwargs):
        return x


def found(*args, **kwargs):
    return masks_of(Model(), (args, kwargs))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32, torch.bool])
def test_a_mask_is_found_by_name_and_by_place_in_any_dtype(dtype):
    mask = MASK.to(dtype)
    for masks in (found(None, mask), found(None, attention_mask=mask), found({"inner": {"attention_mask": mask}})):
        assert len(masks) == 1 and torch.equal(masks[0], MASK.bool())


def test_every_kind_of_mask():
    other = torch.tensor([[1, 1, 1], [1, 1, 0]])
    assert torch.equal(found(None, decoder_attention_mask=MASK)[0], MASK.bool())
    assert torch.equal(found(None, padding_mask=MASK)[0], MASK.bool())
    assert torch.equal(found(None, src_key_padding_mask=~MASK.bool())[0], MASK.bool())
    minus = torch.zeros(2, 3).masked_fill(MASK == 0, -torch.inf)
    assert torch.equal(found(None, src_key_padding_mask=minus)[0], MASK.bool())
    assert len(found(None, attention_mask=MASK, decoder_attention_mask=other)) == 2
    assert len(found(None, attention_mask=MASK, encoder_attention_mask=MASK.bool())) == 1, "the same mask twice is one"


def test_what_is_no_padding_mask():
    assert found(None, attention_mask=torch.ones(2, 1, 3, 3)) == []
    assert found(None, attention_mask=torch.randn(2, 3)) == [], "additive biases are something else"
    assert found(None, input_ids=MASK) == [] and found(None) == []


@pytest.mark.parametrize(
    ("x", "features", "rows"),
    [
        (torch.arange(24.0).reshape(2, 3, 4), -1, lambda x: [x[b, s] for b, s in KEPT]),
        (torch.arange(24.0).reshape(6, 4), -1, lambda x: [x[b * 3 + s] for b, s in KEPT]),
        (torch.arange(24.0).reshape(2, 4, 3), -2, lambda x: [x[b, :, s] for b, s in KEPT]),
        (torch.arange(48.0).reshape(2, 3, 2, 4), -1, lambda x: [x[b, s, h] for b, s in KEPT for h in range(2)]),
    ],
    ids=["batch-position", "flat", "channels-first", "heads"],
)
def test_padding_is_taken_out(x, features, rows):
    values, matched = Positions([MASK.bool()]).select(x, features)
    assert matched and torch.equal(values, torch.stack(rows(x)))


def test_positions_before_batch():
    x = torch.arange(24.0).reshape(3, 2, 4)
    values, matched = Positions([MASK.bool()], position_first=True).select(x, -1)
    assert matched and torch.equal(values, torch.stack([x[s, b] for s in range(3) for b in range(2) if MASK[b, s]]))
    assert not Positions([MASK.bool()]).select(x, -1)[1]
    square = Positions([torch.tensor([[True, False], [True, True]])], position_first=True)
    assert not square.select(torch.zeros(2, 2, 4), -1)[1], "either way round would fit"


def test_where_positions_cannot_be_told_all_are_taken_and_it_says_so():
    gathered = torch.randn(5, 4)
    values, matched = Positions([MASK.bool()]).select(gathered, -1)
    assert not matched and torch.equal(values, gathered)
    two = Positions([MASK.bool(), torch.tensor([[True] * 3, [True, True, False]])])
    assert not two.select(torch.randn(2, 3, 4), -1)[1], "either mask would fit"


def test_one_row_a_sample_and_masks_without_padding_lose_nothing():
    pooled = torch.randn(2, 4)
    assert Positions([MASK.bool()]).select(pooled, -1)[1]
    values, matched = Positions([torch.ones(2, 3, dtype=torch.bool)]).select(torch.randn(5, 4), -1)
    assert matched and len(values) == 5
    assert Positions([]).select(torch.randn(7), -1)[0].shape == (1, 7)


def test_an_encoders_mask_is_not_laid_over_a_decoder_of_the_same_length():
    model = transformer("t5")
    ids = torch.arange(2, 18).reshape(2, 8)
    mask = torch.ones_like(ids)
    mask[:, 3:] = 0
    item = ((), {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids})
    view = EagerView(model)
    points = [p for p in view.points() if p.role is Role.input and p.op is LINEAR]
    seen: dict[str, int] = {}

    def counting(name: str) -> Watch:
        return Watch(frozenset({"count"}), lambda found, _: seen.update({name: int(found["count"])}))

    view.run([item], {p: counting(p.layer) for p in points})
    decoder = [count for name, count in seen.items() if name.startswith("decoder.")]
    assert decoder and set(decoder) == {16}
    assert any("decoder" in where for where, _ in view.notes)
