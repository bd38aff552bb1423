# SPDX-License-Identifier: Apache-2.0
"""Graphs of PyTorch modules: families of language models, parts of what cannot be exported, layers of the rest."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.utils import prune  # noqa: E402

from fewbit.backends.torch.graph import ModuleCall, edited_runner, module_graph  # noqa: E402
from fewbit.errors import UsageError  # noqa: E402
from fewbit.graph.check import check_families, check_removable, relative_difference  # noqa: E402
from fewbit.graph.edits import AddBias, KeepFloat  # noqa: E402
from fewbit.graph.fold import fold_channelwise  # noqa: E402
from fewbit.graph.heads import find_value_heads  # noqa: E402
from fewbit.graph.layers import layers, shared_inputs  # noqa: E402
from fewbit.graph.pruning import prune_families  # noqa: E402
from fewbit.graph.residual import find_residual_stream  # noqa: E402
from fewbit.graph.rotation import rotation_edits  # noqa: E402
from fewbit.graph.scaling import scale_families  # noqa: E402
from module_nets import DECODERS, Encoder, Tagger, decoder, filled, inputs_of, net, tokens  # noqa: E402

GROUPED = [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7]  # four heads of four channels share two of values
SAME = list(range(16))


def checked_links(model, example, other):
    """Producers, consumers and channels of all families with readers, each checked on another sample."""
    graph = module_graph(model, example)
    graph.validate()
    families = scale_families(graph)
    accepted, rejected = check_families(families, edited_runner(model, other))
    assert accepted == families and not rejected
    links = {}
    for family in families:
        producer, consumers = family.of_role("out")[0], family.of_role("in")
        if consumers:
            number = {int(g): channel for channel, g in reversed(list(enumerate(producer.channels))) if g >= 0}
            names = frozenset(use.constant.removesuffix(".weight") for use in consumers)
            channels = [number.get(int(g), -1) for g in consumers[0].channels]
            links[producer.constant.removesuffix(".weight"), names] = channels
    return graph, links


def links_of(name):
    call = [ModuleCall((), inputs_of(name, *size)) for size in ((2, 6), (3, 7))]
    return checked_links(decoder(name), *call)[1]


def block(prefix, norm, readers, values, mlp_norm, mlp_readers):
    """The links that every pre-norm block has."""
    return {
        (f"{prefix}.{norm}", frozenset(f"{prefix}.{r}" for r in readers)): SAME,
        (f"{prefix}.{values[0]}", frozenset([f"{prefix}.{values[1]}"])): values[2],
        (f"{prefix}.{mlp_norm}", frozenset(f"{prefix}.{r}" for r in mlp_readers)): SAME,
    }


def llama_block(prefix, values=GROUPED):
    attention = [f"self_attn.{letter}_proj" for letter in "qkv"]
    links = block(
        prefix, "input_layernorm", attention, ("self_attn.v_proj", "self_attn.o_proj", values),
        "post_attention_layernorm", ["mlp.gate_proj", "mlp.up_proj"],
    )  # fmt: skip
    return links | {(f"{prefix}.mlp.up_proj", frozenset([f"{prefix}.mlp.down_proj"])): list(range(24))}


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma"])
def test_families_of_llama_like_models(name):
    values = [0, 1, 2, 3] * 4 if name == "gemma" else GROUPED
    expected = llama_block("model.layers.0", values) | llama_block("model.layers.1", values)
    if name == "llama":  # the heads of the others are tied to the embedding
        expected[("model.norm", frozenset(["lm_head"]))] = SAME
    assert links_of(name) == expected


def test_families_of_fused_projections():
    links = links_of("gpt2")
    assert links["transformer.h.0.attn.c_attn", frozenset(["transformer.h.0.attn.c_proj"])] == list(range(32, 48))
    assert ("transformer.h.0.ln_1", frozenset(["transformer.h.0.attn.c_attn"])) in links
    links = links_of("phi3")
    layer = "model.layers.1"
    assert links[f"{layer}.self_attn.qkv_proj", frozenset([f"{layer}.self_attn.o_proj"])] == [24 + c for c in GROUPED]
    assert links[f"{layer}.mlp.gate_up_proj", frozenset([f"{layer}.mlp.down_proj"])] == list(range(24, 48))


def test_families_of_experts():
    links = links_of("mixtral")
    mlp = "model.layers.0.mlp"
    key = "model.layers.0.post_attention_layernorm", frozenset([f"{mlp}.gate", f"{mlp}.experts.gate_up_proj"])
    assert links[key] == SAME
    assert links[f"{mlp}.experts.gate_up_proj", frozenset([f"{mlp}.experts.down_proj"])] == list(range(24, 48))


@pytest.mark.slow
@pytest.mark.parametrize("name", DECODERS)
def test_all_architectures_export_and_hold(name):
    """Every family and every rotation of 18 architectures, on another sample than the one that showed them."""
    model = decoder(name)
    graph, links = checked_links(model, *(ModuleCall((), inputs_of(name, *size)) for size in ((2, 6), (3, 7))))
    assert not graph.notes or graph.notes[0].startswith("parameters of no known layer")
    assert len(links) >= 2
    run = edited_runner(model, ModuleCall((), inputs_of(name, 3, 7)), graph)
    exact = [family for family in prune_families(graph) if not family.inexact]
    assert check_removable(exact, run) == (tuple(exact), ()) and exact
    if name in ("bert", "gemma2", "bloom"):
        with pytest.raises(UsageError, match="cannot be rotated"):  # what a norm computes is added
            find_residual_stream(graph)
        return
    stream, heads = find_residual_stream(graph), find_value_heads(graph)
    edits = rotation_edits(graph, stream, _rotation(stream.width, stream.centered), heads, {4: _rotation(4, False)})
    assert relative_difference(run(edits), run(())) < 3e-6 < 1e-2 < relative_difference(run(edits[1:]), run(()))


def _rotation(size, centered):
    random = np.random.default_rng(size)
    basis = np.linalg.qr(np.c_[np.ones(size), random.standard_normal((size, size - 1))])[0]
    inner = np.linalg.qr(random.standard_normal((size, size)))[0]
    if not centered:
        return inner
    inner[0], inner[:, 0] = 0, 0
    inner[0, 0], inner[1:, 1:] = 1, np.linalg.qr(random.standard_normal((size - 1, size - 1)))[0]
    return basis @ inner @ basis.T


@pytest.mark.parametrize("name", ["qwen3", "opt"])
def test_rotated_models_compute_what_they_did(name):
    """Tied head and embedding, gains inside norms, biases moved to a head that had none."""
    model = decoder(name)
    graph = module_graph(model, ModuleCall((), inputs_of(name)))
    stream, heads = find_residual_stream(graph), find_value_heads(graph)
    assert (stream.width, stream.centered, len(heads)) == (16, name == "opt", 2)
    run = edited_runner(model, ModuleCall((), inputs_of(name, 3, 7)), graph)
    before = copy.deepcopy(model.state_dict())
    edits = rotation_edits(graph, stream, _rotation(16, stream.centered), heads, {4: _rotation(4, False)})
    assert relative_difference(run(edits), run(())) < 3e-6
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("name", "dtype"), [("llama", torch.bfloat16), ("gemma", torch.float16), ("opt", torch.float64)]
)
def test_other_float_types(name, dtype):
    model = decoder(name).to(dtype)
    graph = module_graph(model, ModuleCall((), inputs_of(name)))
    families = scale_families(graph)
    assert [str(f) for f in families] == [
        str(f) for f in scale_families(module_graph(decoder(name), ModuleCall((), inputs_of(name))))
    ]
    tolerance = 2e-2 if name == "gemma" else 1e-5  # 1 + weight is not exact in half precision
    accepted, _ = check_families(
        families, edited_runner(model, ModuleCall((), inputs_of(name, 3, 7))), tolerance=tolerance
    )
    assert accepted == families


def test_weights_on_the_meta_device_show_the_same_families():
    model = decoder("llama")
    expected = [str(f) for f in scale_families(module_graph(model, ModuleCall((), inputs_of("llama"))))]
    example = ModuleCall((), {"input_ids": tokens().to("meta")})
    assert [str(f) for f in scale_families(module_graph(model.to("meta"), example))] == expected


def test_a_block_alone_has_the_names_of_the_model():
    model = decoder("llama")
    hidden, positions = torch.randn(2, 6, 16), model.model.rotary_emb(torch.randn(2, 6, 16), torch.arange(6)[None])
    example = ModuleCall((hidden,), {"position_embeddings": positions, "past_key_values": object(), "use_cache": True})
    graph = module_graph(model.model.layers[1], example, prefix="model.layers.1.")
    assert {layer.name for layer in layers(graph)} >= {"model.layers.1.mlp.up_proj"} and not graph.notes
    families = scale_families(graph)
    block = model.model.layers[1]
    other = ModuleCall((torch.randn(2, 6, 16),), {"position_embeddings": positions})
    assert len(families) == 5
    assert check_families(families, edited_runner(block, other, prefix="model.layers.1.")) == (families, ())
    assert [[layer.name.rpartition(".")[2] for layer in group] for group in shared_inputs(graph)] == [
        ["q_proj", "k_proj", "v_proj"], ["gate_proj", "up_proj"]
    ]  # fmt: skip


def test_convolutions_with_batch_norms_and_groups():
    model, x = net("convolutions")
    graph, links = checked_links(model, ModuleCall((x,)), ModuleCall((torch.randn(3, 3, 8, 8),)))
    readers = {producer: sorted(names) for producer, names in links}
    assert readers == {
        "stem": ["bn"], "conv1": ["bn1"], "conv2": ["bn2"], "bn": ["conv1", "plain1"], "bn1": ["conv2"],
        "plain1": ["plain2"], "plain2": ["capped1"], "capped2": ["fc"],
    }  # fmt: skip
    assert links["capped2", frozenset(["fc"])] == [c // 4 for c in range(16)]
    folded = fold_channelwise(graph, ("batch_norm",))
    assert [entry.layer for entry in folded] == ["stem", "conv1", "conv2"]
    assert [entry.nodes for entry in folded] == [("bn",), ("bn1",), ("bn2",)]  # edits name modules
    assert isinstance(folded[0].edits[1], AddBias) and folded[0].edits[1].node == "stem"


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_fused_path_of_encoder_layers_is_avoided(norm_first):
    enabled = torch.backends.mha.get_fastpath_enabled()
    model, x = filled(Encoder(norm_first=norm_first)), torch.randn(2, 5, 16)
    _, links = checked_links(model, ModuleCall((x,)), ModuleCall((torch.randn(3, 7, 16),)))
    layer = "encoder.layers.0"
    assert links[f"{layer}.linear1", frozenset([f"{layer}.linear2"])] == list(range(24))
    assert ((f"{layer}.norm1", frozenset([f"{layer}.self_attn.in_proj_weight"])) in links) == norm_first
    attention = f"{layer}.self_attn.in_proj_weight", frozenset([f"{layer}.self_attn.out_proj"])
    assert links[attention] == list(range(32, 48))
    assert torch.backends.mha.get_fastpath_enabled() == enabled


class Stubborn(nn.Module):
    """A part that can be exported inside a model that cannot."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 16)) for _ in range(2))
        self.odd = Odd()
        self.head = nn.Linear(16, 4)

    def forward(self, ids):
        x = self.embed(ids)
        for inner in self.blocks:
            x = x + inner(x)
        if x.sum() > 1e9:  # decided by data: torch.export refuses
            x = x * 2
        return self.head(self.odd(x))


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(16, 6), nn.Linear(6, 16)

    def forward(self, x):
        return self.two(self.one(x)) if int(x.argmax()) >= 0 else x


def test_what_can_be_exported_of_a_model_that_cannot():
    model = filled(Stubborn())
    graph, links = checked_links(model, ModuleCall((tokens(),)), ModuleCall((tokens(3, 7),)))
    assert set(links) == {(f"blocks.{i}.0", frozenset([f"blocks.{i}.2"])) for i in range(2)}
    assert {layer.name for layer in layers(graph)} == {
        "embed", "head", "odd.one", "odd.two", "blocks.0.0", "blocks.0.2", "blocks.1.0", "blocks.1.2",
    }  # fmt: skip
    assert [note.partition(":")[0] for note in graph.notes] == ["Stubborn cannot be exported", "odd cannot be exported"]


def test_without_a_sample_layers_are_listed_and_nothing_is_connected():
    graph = module_graph(filled(Stubborn()))
    graph.validate()
    assert len(layers(graph)) == 8 and scale_families(graph) == () and graph.notes == ()
    layer = next(layer for layer in layers(graph) if layer.name == "odd.one")
    assert (layer.inputs, layer.outputs, layer.bias) == (("odd.one.input",), ("odd.one.output",), "odd.one.bias")


def test_every_kind_of_layer_is_listed():
    model = nn.ModuleDict(
        {
            "linear": nn.Linear(4, 6), "conv": nn.Conv1d(4, 6, 3, groups=2), "up": nn.ConvTranspose3d(4, 6, 2),
            "embed": nn.Embedding(9, 4), "bag": nn.EmbeddingBag(9, 4), "mha": nn.MultiheadAttention(4, 2, kdim=6),
            "packed": nn.MultiheadAttention(4, 2), "gru": nn.GRU(4, 5), "cell": nn.LSTMCell(4, 5),
            "norm": nn.LayerNorm((3, 4)),
        }
    )  # fmt: skip
    listed = {layer.name: (layer.op, layer.layout) for layer in layers(module_graph(model))}
    products = "linear mha.q_proj_weight mha.k_proj_weight mha.v_proj_weight mha.out_proj packed.in_proj_weight "
    products += "packed.out_proj gru.weight_ih_l0 gru.weight_hh_l0 cell.weight_ih cell.weight_hh"
    others = {
        "conv": ("conv", "OIW"),
        "up": ("conv_transpose", "IODHW"),
        "embed": ("gather", "VO"),
        "bag": ("gather", "VO"),
    }
    assert listed == dict.fromkeys(products.split(), ("matmul", "OI")) | others
    assert module_graph(model).notes == ("parameters of no known layer stay as they are: norm.weight, norm.bias",)


def test_the_transposed_linear_layer_of_transformers():
    graph = module_graph(decoder("gpt2"))
    (layer,) = [layer for layer in layers(graph) if layer.name == "transformer.h.0.attn.c_attn"]
    assert (layer.layout, layer.shape, layer.out_channels) == ("IO", (16, 48), 48)


def test_layers_that_cannot_be_quantized_are_named_with_a_remedy():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.LazyLinear(3), nn.Linear(4, 3))
    model[3].weight = nn.Parameter(torch.empty(3, 0))
    nn.utils.parametrizations.weight_norm(model[0])
    prune.identity(model[1], "weight")
    notes = module_graph(model).notes
    assert [note.partition(" stays")[0] for note in notes[:4]] == ["0.weight", "1.weight", "2.weight", "3.weight"]
    assert "remove_parametrizations" in notes[0] and "prune.remove" in notes[1] and "call the module" in notes[2]
    assert layers(module_graph(model)) == ()


def test_tied_weights_keep_the_names_of_their_layers():
    graph = module_graph(decoder("qwen3"), ModuleCall((), inputs_of("qwen3")))
    named = {layer.name: layer.weight for layer in layers(graph) if layer.weight == "model.embed_tokens.weight"}
    assert set(named) == {"model.embed_tokens", "lm_head"}
    assert graph.constants["model.embed_tokens.weight"].aliases == ("lm_head.weight",)


def test_the_model_and_the_random_state_are_as_before():
    model = decoder("mixtral").train()
    model.config._experts_implementation = "eager"
    stubborn = filled(Stubborn()).train()
    before, state = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    module_graph(model, ModuleCall((), inputs_of("mixtral")))
    module_graph(stubborn, ModuleCall((tokens(),)))
    edited_runner(model, ModuleCall((), inputs_of("mixtral")))(())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(module.training and not module._forward_pre_hooks for module in model.modules())
    assert model.config.use_cache and model.config._experts_implementation == "eager"
    assert torch.equal(torch.random.get_rng_state(), state) and torch.is_grad_enabled() and stubborn.odd.one.training


def test_a_family_that_the_analysis_cannot_see_through_is_rejected_by_the_check():
    """The forward of the second call takes another path than the one that was exported."""

    class Fickle(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x):
            hidden = self.one(x)
            return self.two(hidden if len(x) == 2 else hidden + 1)

    model = filled(Fickle())
    families = scale_families(module_graph(model, ModuleCall((torch.randn(2, 4),))))
    accepted, rejected = check_families(families, edited_runner(model, ModuleCall((torch.randn(3, 4),))))
    assert len(families) == 1 and not accepted and rejected[0].difference > 1e-3


def test_a_trial_run_refuses_edits_it_does_not_know():
    run = edited_runner(nn.Linear(2, 2), ModuleCall((torch.ones(1, 2),)))
    with pytest.raises(UsageError, match="KeepFloat"):
        run([KeepFloat("linear")])


def test_recurrent_layers_are_listed_though_their_operator_is_opaque():
    graph = module_graph(filled(Tagger("GRU")), ModuleCall((tokens(),)))
    names = [layer.name for layer in layers(graph)]
    assert "lstm.weight_hh_l1" in names and names[:2] == ["embed", "inner"]
    assert len(scale_families(graph)) == 1
