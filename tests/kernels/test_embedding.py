# SPDX-License-Identifier: Apache-2.0
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fewbit.kernels import embedding
from fewbit.modules.freezing import freeze
from fewbit.modules.frozen import freeze_layer
from fewbit.modules.quantized import get_weight, set_weight
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.scales import ScaleType
from frozen_layers import DEVICES, INT8, encoded, terms, values

GRIDS = [
    INT8,
    Grid(Dtype.int4, QSchemeType.per_group, group_size=8, symmetric=False),
    Grid(Dtype.int3),
    Grid(Dtype.fp8_e4m3, QSchemeType.per_channel),
    Grid(Dtype.nf4, QSchemeType.per_group, group_size=16),
    Grid(Dtype.fp4, QSchemeType.per_group, group_size=16, scale_type=ScaleType.float8_e4m3fn),
    Grid(Dtype.int8, QSchemeType.per_block, block_size=(7, 5)),
    Grid(Dtype.uint16, QSchemeType.per_channel),
]


class Scaled(nn.Embedding):
    def forward(self, input):
        return super().forward(input) * 3


class Direct(nn.Embedding):
    def forward(self, input):
        return torch.embedding(self.weight, input) + 1


class Odd(nn.Embedding):
    def forward(self, input):
        scale = torch.ones((), dtype=self.weight.dtype, device=self.weight.device) * self.weight.shape[1]
        return F.embedding(input=input, weight=self.weight) * scale + self.weight.abs().amax()


class Detached(nn.Embedding):
    def forward(self, input):
        return F.embedding(input, self.weight.data)


class Turned(nn.Embedding):
    def forward(self, input):
        return self.weight.T[:, input].movedim(0, -1)


class Joined(nn.Embedding):
    def forward(self, input):
        return torch.cat([self.weight, -self.weight])[input]


class Renormed(nn.Embedding):
    def forward(self, input):
        return F.embedding(input, self.weight, None, 0.5)


class Measured(nn.Embedding):
    def forward(self, input):
        sizes = [*self.weight.size(), self.weight.ndim, len(self.weight), self.weight.numel()]
        return super().forward(input) + torch.tensor(sizes, device=self.weight.device).sum()


class Positions(nn.Embedding):
    def forward(self, shape, past=0, *, positions=None):
        if positions is None:
            positions = torch.arange(shape[-1]) + past
        return super().forward(positions)


def table(grid, kind=nn.Embedding, dtype=torch.float32, device="cpu", rows=100, **options):
    layer = kind(rows, 20, **options).to(dtype)
    set_weight(layer, "weight", encoded(layer.weight.detach().float(), grid))
    return layer.requires_grad_(False).to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: f"{g.dtype.name}-{g.granularity.value}")
def test_rows(grid, dtype, device):
    layer = table(grid, dtype=dtype, device=device, padding_idx=3)
    index = torch.tensor([[0, 99, 5], [5, 3, 42]], device=device)
    right = values(get_weight(layer, "weight"))[index]
    before = layer(index)
    freeze_layer(layer, terms(device))
    assert layer.kernel.name == "embedding"
    assert torch.equal(layer(index), before)
    assert torch.allclose(layer(index).double(), right, rtol=torch.finfo(dtype).eps)
    assert layer(index[0, 0]).shape == (20,)
    assert layer(index[:, :0]).shape == (2, 0, 20)


@pytest.mark.parametrize("kind", [Scaled, Direct, Odd, Detached, Turned, Joined, Renormed, Measured])
def test_subclasses_run_their_own_forward(kind):
    layer = table(INT8, kind)
    index = torch.tensor([[1, 2], [3, 4]])
    right = layer(index)
    freeze_layer(layer, terms())
    assert layer.kernel.name == "embedding"
    assert torch.equal(layer(index), right)
    assert torch.equal(layer.weight, values(get_weight(layer, "weight")).float())


def test_the_own_forward_of_a_subclass_gets_every_argument():
    layer = table(INT8, Positions)
    calls = [
        (((2, 5), 7), {}),
        (((2, 5),), {"past": 7}),
        ((), {"past": 7, "shape": (2, 5)}),
        ((torch.Size((2, 5)),), {"positions": torch.arange(7, 12)}),
    ]
    right = values(get_weight(layer, "weight"))[7:12].float()
    freeze_layer(layer, terms())
    assert layer.kernel.name == "embedding"
    assert all(torch.equal(layer(*args, **kwargs), right) for args, kwargs in calls)


def test_arguments_that_a_table_does_not_take_are_told():
    layer = table(INT8)
    freeze_layer(layer, terms())
    index = torch.tensor([3])
    assert torch.equal(layer(input=index), layer(index))
    with pytest.raises(TypeError, match="past"):
        layer(past=torch.tensor([4]), input=index)


def tiny(name):
    import transformers

    sizes = {"vocab_size": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    sides = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in
             (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))}  # fmt: skip
    if name == "bart":
        config = transformers.BartConfig(d_model=16, max_position_embeddings=32, **sizes, **sides)
        return transformers.BartForConditionalGeneration(config)
    config = transformers.OPTConfig(
        hidden_size=16, num_hidden_layers=1, ffn_dim=16, num_attention_heads=2, word_embed_proj_dim=16, **sizes
    )
    return transformers.OPTForCausalLM(config)


@pytest.mark.parametrize("name", ["bart", "opt"])
def test_language_models_with_tables_of_positions_say_the_same(name):
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = tiny(name).eval().requires_grad_(False)
    for part in model.modules():
        if isinstance(part, nn.Embedding):
            part.weight.normal_()  # so that the answer depends on positions
            if type(part).forward is not nn.Embedding.forward and "Position" in type(part).__name__:
                set_weight(part, "weight", encoded(part.weight, INT8))
    given = {"input_ids": torch.tensor([[5, 6, 7, 8]]), "max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    right = model.generate(**given, output_scores=True, return_dict_in_generate=True)
    lines = freeze(model)
    assert lines and {line["kernel"] for line in lines} == {"embedding"}
    found = model.generate(**given, output_scores=True, return_dict_in_generate=True)
    assert torch.equal(found.sequences, right.sequences)
    assert all(torch.equal(a, b) for a, b in zip(found.scores, right.scores))


@pytest.mark.parametrize("kind", [nn.Embedding, Scaled])
@pytest.mark.parametrize("index", [-1, 100])
def test_rows_that_are_not_there_are_no_other_rows(index, kind):
    layer = table(INT8, kind)
    freeze_layer(layer, terms())
    with pytest.raises(IndexError, match="out of range"):
        layer(torch.tensor([1, index]))


def test_no_rows_at_all():
    layer = table(INT8, Scaled)
    freeze_layer(layer, terms())
    assert layer(torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 0, 20)


class Most(TorchDispatchMode):
    """The largest tensor that any one operation made."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        view = func._schema.returns and func._schema.returns[0].alias_info is not None
        if isinstance(out, torch.Tensor) and not view:
            self.elements = max(self.elements, out.numel())
        return out


@pytest.mark.parametrize("kind", [nn.Embedding, Scaled, Direct, Measured])
@pytest.mark.parametrize("grid", GRIDS[:2], ids=["int8", "int4"])
def test_only_the_rows_asked_for_are_dequantized(grid, kind):
    layer = table(grid, kind, rows=10_000)
    freeze_layer(layer, terms())
    with Most() as most:
        layer(torch.tensor([7, 8, 9]))
    assert 0 < most.elements <= 3 * 24  # codes are unpacked eight at a time


def test_two_threads_in_one_layer():
    layer = table(INT8, Scaled)
    freeze_layer(layer, terms())
    index = torch.arange(100)
    right = layer(index)
    wrong = []

    def work():
        wrong.extend(1 for _ in range(50) if not torch.equal(layer(index), right))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_it_refuses():
    assert "max_norm" in embedding.refuses(table(INT8, max_norm=1.0), terms())
    turned = nn.Embedding(6, 6)
    set_weight(turned, "weight", encoded(turned.weight.detach(), INT8), axes=(1, 0))
    assert "transposed" in embedding.refuses(turned, terms())
    layer = nn.Linear(2, 2)
    set_weight(layer, "weight", encoded(layer.weight.detach(), INT8))
    assert embedding.refuses(layer, terms()) == ""
