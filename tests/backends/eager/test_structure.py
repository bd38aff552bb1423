# SPDX-License-Identifier: Apache-2.0
"""Structure found by running, against expectations written by hand; and every link keeps the function when used."""

import pytest
import torch
from torch import nn

from fewbit.backends.eager.view import EagerView
from fewbit.errors import UsageError
from tiny_models import Encoder, ResNet, Tagger, shaken, tokens, transformer

SAME = None  # channel i of the input is channel i of the output
# Four heads of four channels share two key-value heads: head h reads key-value head h // 2.
GROUPED = tuple((c // 4) // 2 * 4 + c % 4 for c in range(16))


def blocks(count, *links):
    return [
        (p.format(i), tuple(c.format(i) for c in consumers), channels)
        for i in range(count)
        for p, consumers, channels in links
    ]


def of_llama(prefix, values=GROUPED):
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    return (
        (f"{prefix}.input_layernorm", (f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj"), SAME),
        (f"{attention}.v_proj", (f"{attention}.o_proj",), values),
        (f"{prefix}.post_attention_layernorm", (f"{mlp}.gate_proj", f"{mlp}.up_proj"), SAME),
        (f"{mlp}.up_proj", (f"{mlp}.down_proj",), SAME),
    )


_LAYER = "model.layers.{}"
_OPT = "model.decoder.layers.{}"
_GPT2 = "transformer.h.{}"
_NEOX = "gpt_neox.layers.{}"
_BERT = "encoder.layer.{}.attention"

TRANSFORMERS = {
    "llama": [*blocks(2, *of_llama(_LAYER)), ("model.norm", ("lm_head",), SAME)],
    "qwen3": blocks(2, *of_llama(_LAYER)),  # the head is tied to the embedding, so the last norm has no link
    "gemma": blocks(2, *of_llama(_LAYER, tuple(c % 4 for c in range(16)))),
    "phi": [
        *blocks(
            2,
            (
                f"{_LAYER}.input_layernorm",
                (*(f"{_LAYER}.self_attn.{n}_proj" for n in "qkv"), f"{_LAYER}.mlp.fc1"),
                SAME,
            ),
            (f"{_LAYER}.self_attn.v_proj", (f"{_LAYER}.self_attn.dense",), SAME),
        ),
        ("model.final_layernorm", ("lm_head",), SAME),
    ],
    "phi3": [
        *blocks(
            2,
            (f"{_LAYER}.input_layernorm", (f"{_LAYER}.self_attn.qkv_proj",), SAME),
            # Queries 0 to 15, keys 16 to 23, values 24 to 31.
            (f"{_LAYER}.self_attn.qkv_proj", (f"{_LAYER}.self_attn.o_proj",), tuple(24 + c for c in GROUPED)),
            (f"{_LAYER}.post_attention_layernorm", (f"{_LAYER}.mlp.gate_up_proj",), SAME),
            (f"{_LAYER}.mlp.gate_up_proj", (f"{_LAYER}.mlp.down_proj",), tuple(range(24, 48))),
        ),
        ("model.norm", ("lm_head",), SAME),
    ],
    "neox": [
        *blocks(
            2,
            (f"{_NEOX}.input_layernorm", (f"{_NEOX}.attention.query_key_value",), SAME),
            # Head by head: four queries, four keys, four values.
            (
                f"{_NEOX}.attention.query_key_value",
                (f"{_NEOX}.attention.dense",),
                tuple(c // 4 * 12 + 8 + c % 4 for c in range(16)),
            ),
            (f"{_NEOX}.post_attention_layernorm", (f"{_NEOX}.mlp.dense_h_to_4h",), SAME),
        ),
        ("gpt_neox.final_layer_norm", ("lm_head",), SAME),
    ],
    "bert": blocks(2, (f"{_BERT}.self.value", (f"{_BERT}.output.dense",), SAME)),
    "opt": blocks(
        2,
        (f"{_OPT}.self_attn_layer_norm", tuple(f"{_OPT}.self_attn.{n}_proj" for n in "qkv"), SAME),
        (f"{_OPT}.self_attn.v_proj", (f"{_OPT}.self_attn.out_proj",), SAME),
        (f"{_OPT}.final_layer_norm", (f"{_OPT}.fc1",), SAME),
        (f"{_OPT}.fc1", (f"{_OPT}.fc2",), SAME),
    ),
    "gpt2": blocks(
        2,
        (f"{_GPT2}.ln_1", (f"{_GPT2}.attn.c_attn",), SAME),
        (f"{_GPT2}.attn.c_attn", (f"{_GPT2}.attn.c_proj",), tuple(range(32, 48))),
        (f"{_GPT2}.ln_2", (f"{_GPT2}.mlp.c_fc",), SAME),
    ),
    "mixtral": [
        *of_llama("model.layers.0")[:2],
        ("model.layers.0.post_attention_layernorm", ("model.layers.0.mlp.gate", "model.layers.0.mlp.experts"), SAME),
        ("model.norm", ("lm_head",), SAME),
    ],
    "llama4": [
        *of_llama("model.layers.0")[:2],
        (
            "model.layers.0.post_attention_layernorm",
            tuple(
                f"model.layers.0.feed_forward.{name}"
                for name in ("router", "experts", "shared_expert.gate_proj", "shared_expert.up_proj")
            ),
            SAME,
        ),
        (
            "model.layers.0.feed_forward.shared_expert.up_proj",
            ("model.layers.0.feed_forward.shared_expert.down_proj",),
            SAME,
        ),
        ("model.norm", ("lm_head",), SAME),
    ],
}


def found(links):
    return {
        link.producer: (
            set(link.consumers),
            SAME if link.channels == tuple(range(len(link.channels))) else link.channels,
        )
        for link in links
    }


def wanted(links):
    return {producer: (set(consumers), channels) for producer, consumers, channels in links}


def rescale_all(view, links, seed=0):
    """Use every link with random factors."""
    generator = torch.Generator().manual_seed(seed)
    for link in links:
        factors = torch.ones(max(link.channels) + 1)
        linked = sorted(set(link.channels) - {-1})
        factors[linked] = torch.rand(len(linked), generator=generator) * 3 + 0.3
        view.rescale(link.producer, link.consumers, link.channels, factors)


def run(model, item):
    torch.manual_seed(0)
    with torch.no_grad():
        out = model(*item[0], **item[1])
    return out if isinstance(out, torch.Tensor) else out[0]


def check_rescaling(view, item, links, tolerance=1e-5):
    before, twin = run(view.native(), item), view.copy()
    rescale_all(twin, links)
    after = run(twin.native(), item)
    assert (after - before).abs().max() <= tolerance * before.abs().max()
    assert torch.equal(run(view.native(), item), before), "the copy's weights are its own"
    for link in links:  # and each one did something
        weight = twin.native().get_submodule(link.producer).weight
        assert not torch.equal(weight, view.native().get_submodule(link.producer).weight)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_links_of_transformers(name):
    model = transformer(name)
    view, item = EagerView(model), ((), {"input_ids": tokens()})
    structure = view.structure(item)
    assert found(structure.links) == wanted(TRANSFORMERS[name])
    assert structure.idle == ()
    check_rescaling(view, item, structure.links)


def test_an_encoder_and_a_decoder():
    view = EagerView(transformer("t5"))
    item = ((), {"input_ids": tokens(), "decoder_input_ids": tokens(2, 5)})
    structure = view.structure(item)
    links = found(structure.links)
    cross = "decoder.block.0.layer.1.EncDecAttention"
    assert "encoder.final_layer_norm" not in links, "the model returns it as encoder_last_hidden_state"
    assert links["decoder.block.0.layer.1.layer_norm"] == ({f"{cross}.q"}, SAME)
    assert links[f"{cross}.v"] == ({f"{cross}.o"}, SAME)
    assert links["encoder.block.0.layer.1.DenseReluDense.wi"][0] == {"encoder.block.0.layer.1.DenseReluDense.wo"}
    check_rescaling(view, item, structure.links)


def test_a_convolutional_network():
    view, item = EagerView(shaken(ResNet())), ((torch.randn(2, 3, 8, 8),), {})
    structure = view.structure(item)
    assert found(structure.links) == wanted(
        [
            ("bn1", ("conv2",), SAME),
            ("plain1", ("plain2",), SAME),
            ("plain2", ("capped1",), SAME),  # but not capped1: ReLU6 does not scale
            ("capped2", ("fc",), tuple(c // 4 for c in range(16))),  # four pixels a channel, flattened
        ]
    )
    assert structure.order[:3] == ("stem", "bn", "conv1")
    check_rescaling(view, item, structure.links)


def test_a_recurrent_network():
    view, item = EagerView(shaken(Tagger())), ((tokens(),), {})
    structure = view.structure(item)
    assert found(structure.links) == wanted([("inner", ("lstm",), SAME)])
    check_rescaling(view, item, structure.links)


@pytest.mark.parametrize("norm_first", [True, False])
def test_torchs_encoder(norm_first):
    view, item = EagerView(shaken(Encoder(norm_first=norm_first))), ((torch.randn(2, 5, 16),), {})
    layer = "encoder.layers.{}"
    links = [(f"{layer}.linear1", (f"{layer}.linear2",), SAME)]
    if norm_first:
        links += [(f"{layer}.norm1", (f"{layer}.self_attn",), SAME), (f"{layer}.norm2", (f"{layer}.linear1",), SAME)]
    structure = view.structure(item)
    assert found(structure.links) == wanted(blocks(2, *links))
    check_rescaling(view, item, structure.links)


@pytest.mark.parametrize(
    ("name", "dtype"), [("llama", torch.bfloat16), ("gpt2", torch.float16), ("opt", torch.float64)]
)
def test_other_float_types(name, dtype):
    view = EagerView(transformer(name).to(dtype))
    structure = view.structure(((), {"input_ids": tokens()}))
    assert found(structure.links) == wanted(TRANSFORMERS[name])
    check_rescaling(view, ((), {"input_ids": tokens()}), structure.links, 0.05 if dtype != torch.float64 else 1e-12)


def test_shared_inputs_and_order():
    structure = EagerView(transformer("llama")).structure(((), {"input_ids": tokens()}))
    attention, mlp = "model.layers.{}.self_attn", "model.layers.{}.mlp"
    assert structure.shared == tuple(
        group
        for i in range(2)
        for group in (
            tuple(f"{attention.format(i)}.{n}_proj" for n in "qkv"),
            tuple(f"{mlp.format(i)}.{n}_proj" for n in ("gate", "up")),
        )
    )
    assert structure.order[0] == "model.embed_tokens" and structure.order[-1] == "lm_head"
    assert structure.order.index("model.layers.0.mlp.down_proj") < structure.order.index(
        "model.layers.1.input_layernorm"
    )


def test_a_view_of_the_same_rows_is_the_same_input_but_a_changed_tensor_is_not():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Linear(4, 4) for _ in range(4))

        def forward(self, x):
            x = x * 1
            y = self.a(x).sum() + self.b(x.view(-1, 4)).sum() + self.d(x * 1).sum()
            x += 1
            return y + self.c(x).sum()

    structure = EagerView(Reads()).structure(((torch.randn(2, 3, 4),), {}))
    assert structure.shared == (("a", "b"),)


class Case(nn.Module):
    """Two linear layers with something between them."""

    def __init__(self, between, **extra):
        super().__init__()
        self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 3)
        self.between = between
        for name, module in extra.items():
            self.add_module(name, module)

    def forward(self, x):
        return self.between(self, x)


def links_of(between, x=None, **extra):
    torch.manual_seed(0)
    view = EagerView(shaken(Case(between, **extra)))
    item = ((torch.randn(3, 4) if x is None else x,), {})
    structure = view.structure(item)
    if structure.links:
        check_rescaling(view, item, structure.links)
    return found(structure.links)


LINKED = {"one": ({"two"}, SAME)}


@pytest.mark.parametrize(
    "between",
    [
        lambda m, x: m.two(m.one(x)),
        lambda m, x: m.two(m.one(x).relu()),
        lambda m, x: m.two(nn.functional.leaky_relu(m.one(x), 0.1)),
        lambda m, x: m.two(m.one(x).relu_().mul_(0.5)),
        lambda m, x: m.two(m.one(x) * torch.sigmoid(x[:, :1])),
        lambda m, x: m.two(m.one(x).cumsum(0)),
        lambda m, x: m.two(m.one(x).to(torch.float64).to(torch.float32)),
        lambda m, x: m.two(m.one(x).max(0, keepdim=True).values),
        lambda m, x: m.two(m.one(x) + m.one(2 * x)),  # called twice, the same factors each time
    ],
)
def test_what_a_scale_passes(between):
    assert links_of(between) == LINKED


@pytest.mark.parametrize(
    "between",
    [
        lambda m, x: m.two(m.one(x) + 1),
        lambda m, x: m.two(m.one(x).tanh()),
        lambda m, x: m.two(nn.functional.gelu(m.one(x))),
        lambda m, x: m.two(m.one(x).clamp(-10, 10)),
        lambda m, x: m.two(nn.functional.hardtanh(m.one(x), 0.0, 6.0)),
        lambda m, x: m.two(m.one(x) + x[:, :1]),
        lambda m, x: m.two(m.one(x) / m.one(x).norm()),
        lambda m, x: m.two(m.one(x).softmax(-1)),
        lambda m, x: m.two(m.one(x).square()),
        lambda m, x: m.two(m.one(x) @ torch.ones(6, 6)),
    ],
)
def test_what_a_scale_does_not_pass(between):
    assert links_of(between) == {}


@pytest.mark.parametrize(
    "between",
    [
        lambda m, x: (m.two(y := m.one(x)), y),  # it is an output of the model
        lambda m, x: m.two(y := m.one(x)) + y[:, :3],  # it goes round the consumer
        lambda m, x: m.two(y := m.one(x)) + nn.functional.linear(y, m.two.weight * 2),  # read by no layer at all
        lambda m, x: m.two(y := m.one(x)) * y.sum().item(),  # a number of Python, out of sight
        lambda m, x: m.two(y := m.one(x)) + m.norm(y).sum(),  # a norm cannot scale it back
        lambda m, x: m.two(y := m.one(x)) + m.other(y.tanh())[:, :3],  # another reader sees it bent
        lambda m, x: m.two(m.one(x)) + m.two(torch.ones_like(x[:, :1]).expand(-1, 6)),  # the consumer reads more
        lambda m, x: m.two(torch.where(m.one(x).sum() > 0, 1.0, 2.0) * m.one(x)),  # what is done depends on it
        lambda m, x: m.two(y := m.one(x)) + torch.from_numpy(y.numpy().copy())[:, :3],  # by a way nobody watches
        lambda m, x: m.two(y := m.one(x)) + m.cell(x, y)[:, :3],  # as another argument of a layer
    ],
)
def test_a_reader_that_cannot_scale_back_forbids_the_link(between):
    assert links_of(between, norm=nn.LayerNorm(6), other=nn.Linear(6, 6), cell=nn.GRUCell(4, 6)) == {}


def test_all_readers_together_are_one_link():
    links = links_of(lambda m, x: m.two(y := m.one(x).relu()) + m.other(y), other=nn.Linear(6, 3))
    assert links == {"one": ({"two", "other"}, SAME)}


def test_readers_that_see_other_orders_of_channels_are_no_link():
    links = links_of(lambda m, x: m.two(y := m.one(x)) + m.other(y.flip(-1)), other=nn.Linear(6, 3))
    assert links == {}


def test_channels_turned_round_repeated_and_joined():
    assert links_of(lambda m, x: m.two(m.one(x).flip(-1))) == {"one": ({"two"}, (5, 4, 3, 2, 1, 0))}
    links = links_of(lambda m, x: m.two(torch.cat([m.one(x)[:, :3], m.other(x)], -1)), other=nn.Linear(4, 3))
    assert links == {"one": ({"two"}, (0, 1, 2, -1, -1, -1)), "other": ({"two"}, (-1, -1, -1, 0, 1, 2))}
    links = links_of(lambda m, x: m.two(m.small(x).repeat_interleave(2, -1)), small=nn.Linear(4, 3))
    assert links == {"small": ({"two"}, (0, 0, 1, 1, 2, 2))}


def test_a_part_of_an_output_that_is_used_another_way():
    """A gate in the same layer: only what is multiplied can be scaled."""
    links = links_of(lambda m, x: m.two((y := m.both(x))[:, 6:] * y[:, :6].sigmoid()), both=nn.Linear(4, 12))
    assert links == {"both": ({"two"}, tuple(range(6, 12)))}


def test_a_channel_that_a_relu_holds_back_on_one_sample_only():
    assert links_of(lambda m, x: m.two(m.one(x).relu()), x=torch.randn(1, 4)) == LINKED


def test_more_channels_than_three_digits_can_spell():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4000), nn.ReLU(), nn.Linear(4000, 2))
    (link,) = EagerView(model).structure(((torch.randn(2, 2),), {})).links
    assert link.channels == tuple(range(4000))


def test_shared_and_tied_parameters_are_left_alone():
    torch.manual_seed(0)
    model = shaken(Case(lambda m, x: m.two(m.one(x)) + m.other(x)[:, :3], other=nn.Linear(4, 6)))
    model.other.weight = model.one.weight
    assert EagerView(model).structure(((torch.randn(3, 4),), {})).links == ()
    # One module called twice is no tie: it is scaled for both calls.
    assert links_of(lambda m, x: m.two(m.one(x).relu()) + m.two(m.one(x + 1).relu())) == LINKED


def test_quantized_layers_have_no_links():
    from tiny_models import codes

    model = shaken(Case(lambda m, x: m.two(m.one(x))))
    view = EagerView(model)
    weight = next(p for p in view.points() if p.name == "two.weight")
    view.quantize(weight, codes(view.read(weight)))
    assert view.structure(((torch.randn(3, 4),), {})).links == ()


def test_a_model_that_draws_numbers():
    assert links_of(lambda m, x: m.two(m.one(x) * torch.rand(3, 1))) == LINKED


def test_a_layer_whose_parameters_do_not_do_it_has_no_link():
    class Shifted(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    class Peeks(nn.Linear):
        def forward(self, x):
            return super().forward(x) + x[:, :3]

    assert links_of(lambda m, x: m.two(m.shifted(x)), shifted=Shifted(4, 6)) == {}
    assert links_of(lambda m, x: m.peeks(m.one(x)), peeks=Peeks(6, 3)) == {}


def test_a_layer_called_without_arguments():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(3, 6))

        def forward(self):
            return self.table

    assert links_of(lambda m, x: m.two(m.one(x) * m.table().sum()), table=Table()) == LINKED


def test_norms_of_ones_own():
    class Scale(nn.Module):
        """A layer scale under a name of its own."""

        def __init__(self):
            super().__init__()
            self.gamma = nn.Parameter(torch.rand(6) + 0.5)

        def forward(self, x):
            return x * self.gamma

    class Centred(nn.Module):
        """Gemma's way: the weight is what is added to one; and a bias under another name."""

        def __init__(self):
            super().__init__()
            self.shift, self.gain = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6))

        def forward(self, x):
            return nn.functional.rms_norm(x, (6,)) * (1 + self.gain) + self.shift

    for norm, producer in ((Scale(), "norm"), (Centred(), "norm"), (nn.PReLU(6), None), (nn.Softplus(), None)):
        torch.manual_seed(0)
        model = shaken(Case(lambda m, x: m.two(m.norm(m.one(x))), norm=norm))
        view, item = EagerView(model), ((torch.randn(3, 4),), {})
        links = view.structure(item).links
        assert [link.producer for link in links] == ([producer] if producer else [])
        before = run(model, item)
        rescale_all(view, links)
        torch.testing.assert_close(run(model, item), before, atol=1e-5, rtol=1e-5)


def test_idle_layers_and_long_padded_items():
    class Skips(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.used, self.unused = nn.Embedding(40, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.sizes = []

        def forward(self, input_ids, attention_mask):
            self.sizes.append(tuple(input_ids.shape))
            assert attention_mask.all(), "padding was chosen"
            return self.used(self.embed(input_ids))

    model = Skips()
    mask = torch.zeros(5, 300, dtype=torch.long)
    mask[:, 200:290] = 1
    structure = EagerView(model).structure(((torch.zeros_like(mask), mask), {}))
    assert structure.idle == ("unused",) and set(model.sizes[:1]) == {(2, 16)}


def test_an_item_that_cannot_be_cut_is_taken_whole():
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(40, 6), nn.Linear(6, 2)

        def forward(self, ids):
            return self.two(self.one(ids.float()).relu())

    (link,) = EagerView(Whole()).structure(((torch.randint(0, 9, (4, 40)),), {})).links
    assert link.producer == "one"


def test_the_model_is_as_before():
    model = transformer("mixtral").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    view = EagerView(model)
    view.structure(((), {"input_ids": tokens()}))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(m.training and not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    assert model.config.use_cache


@pytest.fixture
def linked():
    torch.manual_seed(0)
    view = EagerView(Case(lambda m, x: m.two(m.one(x).relu())))
    (link,) = view.structure(((torch.randn(3, 4),), {})).links
    return view, link


@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf"), float("nan")])
def test_dead_channels_are_refused_and_nothing_is_changed(linked, bad):
    view, link = linked
    factors = torch.ones(6)
    factors[4] = bad
    before = {name: tensor.clone() for name, tensor in view.native().state_dict().items()}
    with pytest.raises(UsageError, match="1 of 6 factors") as error:
        view.rescale(link.producer, link.consumers, link.channels, factors)
    assert "channels 4" in error.value.where
    assert all(torch.equal(before[name], tensor) for name, tensor in view.native().state_dict().items())


def test_factors_that_do_not_fit_the_link_are_refused(linked):
    view, link = linked
    with pytest.raises(UsageError, match="5 factors for the 6"):
        view.rescale(link.producer, link.consumers, link.channels, torch.ones(5))
    with pytest.raises(UsageError, match="no consumer that would undo"):
        view.rescale(link.producer, link.consumers, (0, 1, 2, -1, -1, -1), torch.full((6,), 2.0))
    with pytest.raises(UsageError, match="is not known"):
        EagerView(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4))).rescale("0", ["1"], range(4), torch.ones(4))


def test_codes_are_not_rescaled(linked):
    from tiny_models import codes

    view, link = linked
    weight = next(p for p in view.points() if p.name == "two.weight")
    view.quantize(weight, codes(view.read(weight)))
    with pytest.raises(UsageError, match="quantized already"):
        view.rescale(link.producer, link.consumers, link.channels, torch.ones(6))
