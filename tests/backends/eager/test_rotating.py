# SPDX-License-Identifier: Apache-2.0
"""Streams of models that nobody described, turned: the answers stay what they were."""

import copy

import pytest
import torch
from torch import nn

from fewbit.algorithms._base import StreamProblem
from fewbit.algorithms._orthogonal import Orthogonal
from fewbit.algorithms.rotation import solve
from fewbit.backends.eager.view import EagerView
from fewbit.errors import UsageError
from tiny_models import Encoder, ResNet, shaken, tokens, transformer

# name: whether norms take the mean away, heads that are turned, what is untied
MODELS = {
    "llama": (False, 2, ()),
    "Mistral": (False, 2, ()),
    "Qwen2Moe": (False, 2, ()),
    "qwen3": (False, 2, ("lm_head.weight", "model.embed_tokens.weight")),
    "gemma": (False, 2, ("lm_head.weight", "model.embed_tokens.weight")),
    "phi3": (False, 2, ()),
    "phi": (True, 2, ()),
    "neox": (True, 2, ()),
    "gpt2": (True, 2, ("lm_head.weight", "transformer.wte.weight")),
    "opt": (True, 2, ("lm_head.weight", "model.decoder.embed_tokens.weight")),
    "t5": (False, 3, ("lm_head.weight", "decoder.embed_tokens.weight")),
    "mixtral": (False, 1, ()),
    "qwen3_moe": (False, 1, ()),
    "gpt_oss": (False, 1, ()),
    "llama4": (False, 1, ()),
}
OTHERS = {
    "Mistral": {"sliding_window": 4},
    "Gemma2": {},
    "Qwen2Moe": {  # whose gate of one channel has a part in the stream
        "num_experts": 4, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 12, "num_experts_per_tok": 2,
    },
}  # fmt: skip


def built(name):
    if name not in OTHERS:
        return transformer(name)
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=4, vocab_size=40, tie_word_embeddings=False, **OTHERS[name],
    )  # fmt: skip
    return shaken(getattr(transformers, f"{name}ForCausalLM")(config))


def item(name, batch=2, length=9):
    ids = tokens(batch, length)
    return (), {"input_ids": ids} | ({"decoder_input_ids": ids.flip(1)} if name == "t5" else {})


def turned(view, stream, **how):
    found = solve(StreamProblem(stream.width, [heads.size for heads in stream.heads], stream.centred), **how)
    twin = view.copy()
    return twin, found, twin.rotate(stream, found.stream, found.heads)


def off(view, other, given):
    a, b = (next(each.answers([given]))[0].double() for each in (view, other))
    return float((a - b).norm() / a.norm())


@pytest.mark.parametrize("name", MODELS)
def test_the_answers_stay_what_they_were(name):
    model = built(name)
    before = copy.deepcopy(model.state_dict())
    view, given = EagerView(model), item(name)
    stream = view.stream(given)
    centred, heads, untied = MODELS[name]
    assert (stream.width, stream.centred, len(stream.heads)) == (16, centred, heads)
    assert all(each.size == 4 for each in stream.heads)
    twin, found, parted = turned(view, stream)
    assert parted == untied and found.stream.block == 16

    # On another item than the one that showed the stream; and all of it is turned, not a part.
    other = item(name, 3, 7)
    assert off(view, twin, other) < 3e-6
    changed = {key for key, value in twin.native().state_dict().items() if not torch.equal(value, before[key])}
    for layer in (*stream.writers, *stream.layers, *stream.norms):
        assert any(key.startswith(f"{layer}.") for key in changed), layer

    # The model that was given is as it was, its ties too.
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    if untied:
        assert twin.native().config.tie_word_embeddings is False and model.config.tie_word_embeddings is True
        one, two = (view.native().get_parameter(name) for name in untied)
        assert one is two


@pytest.mark.parametrize("block", [2, 8])
def test_blocks_are_turned_each_for_itself(block):
    view, given = EagerView(built("llama")), item("llama")
    twin, found, _ = turned(view, view.stream(given), block=block, seed=5)
    assert found.stream.block == block and off(view, twin, given) < 3e-6


def test_by_hand():
    """Llama's first block and head, from what was written down about them."""
    model = built("llama")
    view = EagerView(model)
    stream = view.stream(item("llama"))
    twin, found, _ = turned(view, stream)
    q, r = found.stream.matrix.float(), torch.block_diag(*[found.heads[4].matrix] * 4).float()
    old, new = model.model, twin.native().model
    close = lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=1e-5)  # noqa: E731
    close(new.embed_tokens.weight, old.embed_tokens.weight @ q)
    was, now = old.layers[0], new.layers[0]
    close(now.self_attn.q_proj.weight, was.self_attn.q_proj.weight * was.input_layernorm.weight @ q)
    values = was.self_attn.v_proj.weight * was.input_layernorm.weight @ q
    close(now.self_attn.v_proj.weight, r[:8, :8].T @ values)
    close(now.self_attn.o_proj.weight, q.T @ was.self_attn.o_proj.weight @ r)
    close(now.mlp.down_proj.weight, q.T @ was.mlp.down_proj.weight)
    close(twin.native().lm_head.weight, model.lm_head.weight * old.norm.weight @ q)
    assert (now.input_layernorm.weight == 1).all() and (new.norm.weight == 1).all()


def test_half_types():
    model = built("qwen3").to(torch.bfloat16)
    view, given = EagerView(model), item("qwen3")
    twin, _, _ = turned(view, view.stream(given))
    assert all(p.dtype is torch.bfloat16 for p in twin.native().parameters())
    assert off(view, twin, given) < 0.05


class Streaming(nn.Module):
    """Layers between norms, as plain as can be, with one thing or another that does not fit."""

    def __init__(self, odd=""):
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        self.norms = nn.ModuleList(nn.RMSNorm(16) for _ in range(3))
        self.ups, self.downs = (nn.ModuleList(nn.Linear(a, b) for _ in range(2)) for a, b in ((16, 24), (24, 16)))
        self.head = nn.Linear(16, 40)
        self.odd = odd

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for norm, up, down in zip(self.norms[:2], self.ups, self.downs):
            up = self.ups[0] if self.odd == "shared" else up
            step = down(up(norm(x)).relu())
            x = x + (step.relu() if self.odd == "relu" else step)
        out = self.head(self.norms[2](x))
        return (out, x) if self.odd == "returned" else out


def test_sums_are_told_by_the_answers():
    """That something else than a sum lies on the way shows only when it is tried."""
    for odd, fits in (("", True), ("relu", False)):
        view = EagerView(shaken(Streaming(odd)))
        stream = view.stream(item(""))
        assert stream.writers == ("embed", "downs.0", "downs.1") and stream.heads == ()
        twin, _, _ = turned(view, stream)
        assert (off(view, twin, item("")) < 3e-6) is fits


def test_one_position_does_not_show_heads():
    view, given = EagerView(built("llama")), item("llama", length=1)
    stream = view.stream(given)
    assert stream.heads == ()
    assert off(view, turned(view, stream)[0], item("llama")) < 3e-6


@pytest.mark.parametrize(
    ("make", "reasons"),
    [
        (lambda: transformer("bert"), ["LayerNorm"]),
        (
            lambda: built("Gemma2"),
            ["4. model.layers.1.post_feedforward_layernorm is a norm whose output"],
        ),
        (lambda: Streaming("returned"), ["the model returns what embed adds to", "what downs.1 adds to"]),
        (lambda: transformer("llama").model, ["the model returns what norm makes"]),
        (Encoder, ["the model returns"]),
        (lambda: Streaming("shared"), ["ups.0 reads norms.1 too", "ups.0 reads norms.0 too"]),
    ],
    ids=[
        "norms behind layers",
        "norms of both kinds",
        "a stream that is returned",
        "no head",
        "no table",
        "gains of two norms",
    ],
)
def test_what_cannot_be_turned_is_refused_with_every_reason(make, reasons):
    model = shaken(make())
    given = (torch.randn(2, 6, 16),) if isinstance(model, Encoder) else ()
    with pytest.raises(UsageError, match="cannot be rotated") as error:
        EagerView(model).stream((given, {} if given else {"input_ids": tokens()}))
    assert all(reason in error.value.what for reason in reasons), error.value.what


def test_pictures_have_no_stream():
    with pytest.raises(UsageError, match="cannot be rotated"):
        EagerView(shaken(ResNet())).stream(((torch.randn(2, 3, 8, 8),), {}))


def test_a_configuration_of_any_kind_is_no_hindrance():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.config = transformer("qwen3"), {"name": "mine"}

        def forward(self, input_ids):
            return self.inner(input_ids=input_ids).logits

    model = Wrapped().eval()
    item = ((torch.randint(3, 40, (2, 9), generator=torch.Generator().manual_seed(0)),), {})
    twin = EagerView(model).copy()
    stream = twin.stream(item)
    assert twin.rotate(stream, Orthogonal.spreading(stream.width, stream.width), {})  # embedding and head, now two
    assert twin.native().inner.config.tie_word_embeddings is False and model.inner.config.tie_word_embeddings is True
