# SPDX-License-Identifier: Apache-2.0
"""What only a GPU can show; skipped where there is none."""

import pytest
import torch

from fewbit.backends.eager.view import EagerView
from fewbit.model.points import Role
from fewbit.model.watch import Watch
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from tiny_models import ResNet, Tagger, codes, shaken, tokens, transformer

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
    pytest.mark.filterwarnings("ignore:RNN module weights"),  # they are made anew for each forward
]


def weights(view):
    return view.points(lambda p: p.role is Role.weight)


def test_a_quantized_model_moves_and_stays_the_same():
    view = EagerView(transformer("opt"))
    done = set()
    for point in weights(view):
        if not done & set(point.users):
            view.quantize(point, codes(view.read(point), point.stack))
            done |= set(point.users)
    for point in view.points(lambda p: p.role is Role.input):
        view.quantize(point, Grid(Dtype.int8))
    model = view.native()
    with torch.no_grad():
        before = model(tokens()).logits
        model.cuda()
        embed = model.model.decoder.embed_tokens
        assert model.lm_head.weight_packed is embed.weight_packed and embed.weight_packed.is_cuda
        torch.testing.assert_close(model(tokens().cuda()).logits.cpu(), before, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(model.cpu()(tokens()).logits, before)


def test_items_move_to_the_model_and_activations_stay_there():
    view = EagerView(transformer("llama").cuda())
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]])
    seen = []
    point = next(p for p in view.points() if p.name == "model.layers.0.mlp.down_proj:input")
    state = torch.cuda.get_rng_state()
    view.run(
        [((), {"input_ids": tokens(), "attention_mask": mask})],
        {point: Watch(frozenset({"values"}), lambda found, i: seen.append(found["values"]))},
    )
    assert seen[0].is_cuda and seen[0].shape == (8, 24)
    assert torch.equal(state, torch.cuda.get_rng_state())


@pytest.mark.parametrize("name", ["llama", "gpt2", "phi3", "mixtral", "gpt_oss"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_structure_is_the_same_on_the_gpu(name, dtype):
    item = ((), {"input_ids": tokens()})
    expected = EagerView(transformer(name)).structure(item)
    view = EagerView(transformer(name).to("cuda", dtype))
    found = view.structure(item)
    assert found == expected
    for link in found.links:
        view.rescale(link.producer, link.consumers, link.channels, torch.ones(max(link.channels) + 1))


def test_other_kinds_of_layers():
    for model, item in ((ResNet(), torch.randn(2, 3, 8, 8)), (Tagger(), tokens())):
        view = EagerView(shaken(model).cuda())
        for point in weights(view):
            view.quantize(point, codes(view.read(point), point.stack))
        with torch.no_grad():
            out = view.native()(item.cuda())
            torch.testing.assert_close(out.cpu(), view.native().cpu()(item), atol=1e-3, rtol=1e-3)
