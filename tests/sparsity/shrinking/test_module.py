# SPDX-License-Identifier: Apache-2.0
"""Smaller modules: what they answer, what of them is gone, what stays as it was."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from channel_nets import NETS, Attention, Residual, items, job_for, net
from fewbit.data.dataset import Dataset
from fewbit.errors import UsageError
from fewbit.sparsity.shrinking import module as shrinking
from fewbit.sparsity.stages import shrink
from tiny_models import Encoder, Tagger, shaken, tokens


def shrunk(model: nn.Module, data: Any, **options: Any) -> tuple[Any, Any]:
    job = job_for(model, data)
    return shrink.run(model, shrink.Settings(**options), job), job.record


@pytest.mark.parametrize("name", NETS)
def test_a_smaller_network_runs_and_the_users_is_as_it_was(name: str) -> None:
    model, data = net(name), items(NETS[name][1])
    before = deepcopy(model.state_dict())
    made, record = shrunk(model, data, channels=0.5)
    again, _ = shrunk(model, data, channels=0.5)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in made.state_dict().items())
    facts = record.facts["shrink"]
    assert facts["after"] == sum(p.numel() * 4 for p in made.parameters()) < facts["before"]
    assert not {p.data_ptr() for p in made.parameters()} & {p.data_ptr() for p in model.parameters()}
    assert all(group["after"] == -(-group["before"] // 2) for group in facts["groups"])
    for batch in (1, 3):
        assert made(data[0][:batch]).shape == model(data[0][:batch]).shape


@pytest.mark.parametrize("name", NETS)
def test_modules_say_the_sizes_that_they_have(name: str) -> None:
    made, _ = shrunk(net(name), items(NETS[name][1]), channels=0.5)
    for module in made.modules():
        if isinstance(module, nn.Linear):
            assert (module.out_features, module.in_features) == tuple(module.weight.shape)
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            kind: Any = type(module)
            same = kind(module.in_channels, module.out_channels, module.kernel_size, groups=module.groups)
            assert same.weight.shape == module.weight.shape
        if isinstance(module, nn.BatchNorm2d):
            assert module.num_features == len(module.weight) == len(module.running_mean)


def test_no_share_is_no_change() -> None:
    model = net("gated")
    made, record = shrunk(model, None)
    assert made is not model and all(map(torch.equal, made.state_dict().values(), model.state_dict().values()))
    assert record.lines[0]["what"] == "shrink"


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_random_residual_networks_lose_what_nothing_reads_and_answer_as_before(data: st.DataObject) -> None:
    width = data.draw(st.sampled_from([2, 4, 6]))
    inner = tuple(data.draw(st.lists(st.sampled_from([2, 4, 8]), min_size=1, max_size=3)))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    model = shaken(Residual(width, inner, side=data.draw(st.booleans())))
    unread = torch.randperm(width)[: width // 2]
    with torch.no_grad():
        model.head.weight[:, unread] = 0
        for block, count in zip(model.blocks, inner, strict=True):
            block.conv1.weight[:, unread] = 0
            if isinstance(block.side, nn.Sequential):
                block.side[0].weight[:, unread] = 0
            block.conv2.weight[:, torch.randperm(count)[: count // 2]] = 0
    batches = items((3, 4, 4), 2)
    made, record = shrunk(model, batches, channels=0.5, compensate=False)
    assert sum(group["before"] - group["after"] for group in record.facts["shrink"]["groups"]) == (
        width // 2 * (1 if not isinstance(model.blocks[0].side, nn.Sequential) else 1 + len(inner))
    ) + sum(each // 2 for each in inner)
    torch.testing.assert_close(made(batches[0]), model(batches[0]), rtol=1e-4, atol=1e-5)


def test_a_perceptron_by_hand() -> None:
    """Columns and rows taken out with indices, in numpy's manner."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    with torch.no_grad():
        for row in (1, 4):
            model[0].weight[row] *= 1e-3
            model[2].weight[:, row] *= 1e-3
    made, _ = shrunk(model, items((4,)), channels=1 / 3, score="magnitude", compensate=False)
    kept = [0, 2, 3, 5]
    assert torch.equal(made[0].weight, model[0].weight[kept]) and torch.equal(made[0].bias, model[0].bias[kept])
    assert torch.equal(made[2].weight, model[2].weight[:, kept]) and torch.equal(made[2].bias, model[2].bias)


def test_heads_that_the_code_counts_itself_are_counted_anew() -> None:
    model = shaken(Attention())
    data = items((6, 8))
    made, record = shrunk(model, data, heads=0.5)
    assert (made.heads, made.width, made.qkv.out_features, made.out.in_features) == (2, 3, 18, 6)
    assert model.heads == 4 and made(data[0][:1]).shape == (1, 3)
    assert record.facts["shrink"]["groups"] == [{"group": "qkv.weight", "kind": "heads", "before": 4, "after": 2}]


def test_attention_of_torch_keeps_its_heads_and_says_so() -> None:
    model = shaken(Encoder())
    made, _ = shrunk(model, items((5, 16), 5), channels=0.25)
    assert made.encoder.layers[0].linear1.out_features == 18
    with pytest.raises(UsageError, match="no heads can be taken out") as caught:
        shrunk(model, items((5, 16), 5), heads=0.5)
    assert "in_proj_weight" in str(caught.value)


def test_an_operator_that_nobody_knows_keeps_its_channels_and_is_named() -> None:
    made, record = shrunk(shaken(Tagger()), [tokens()] * 5, channels=0.5)
    lines = [line for line in record.lines if line["what"] == "dense"]
    assert any(line["where"] == "inner.weight" and "rnn" in line["reason"] for line in lines)
    assert made.inner.out_features == 10 and made.embed.embedding_dim == 4


class Written(nn.Module):
    """A forward that writes a width down, and another layer that can be shrunk."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.relu(self.b(torch.relu(self.a(x)).view(-1, 2, 3).flatten(1))))


def test_a_width_that_the_code_writes_down_stays_and_the_rest_shrinks() -> None:
    made, record = shrunk(shaken(Written()), items((4,)), channels=0.5)
    assert (made.a.out_features, made.b.out_features) == (6, 4)
    assert any(line["what"] == "dense" and line["where"] == "a.weight" for line in record.lines)


def test_targets_ignore_and_multiples() -> None:
    model, data = net("flat"), items(NETS["flat"][1])
    made, _ = shrunk(model, data, channels=0.5, targets=("conv*",), ignore=("conv1",))
    assert (made.conv1.out_channels, made.conv2.out_channels, made.fc1.out_features) == (8, 3, 10)
    made, _ = shrunk(model, data, channels=0.6, multiple=4)
    assert (made.conv1.out_channels, made.conv2.out_channels, made.fc1.out_features) == (4, 4, 4)
    with pytest.raises(UsageError, match="names no layer"):
        shrink.refuse(shrink.Settings(channels=0.5, targets=("cnv1",)), model, job_for(model, data))


def test_a_module_that_was_cut_wrongly_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*given: Any) -> nn.Module:
        made = smaller(*given)
        with torch.no_grad():
            next(iter(made.parameters())).neg_()
        return made

    smaller = shrinking.smaller
    monkeypatch.setattr(shrinking, "smaller", wrong)
    with pytest.raises(UsageError, match="does not answer as the larger one"):
        shrunk(net("flat"), items(NETS["flat"][1]), channels=0.5)


def test_compensation_brings_answers_nearer_and_is_told() -> None:
    model, data = net("flat"), items(NETS["flat"][1], 20)
    plain, _ = shrunk(model, data, channels=0.5, compensate=False)
    made, record = shrunk(model, data, channels=0.5)
    unseen = items(NETS["flat"][1], 30)[20:]
    with torch.no_grad():
        off = [sum(float((each(x) - model(x)).square().sum()) for x in unseen) for each in (plain, made)]
    assert off[1] < off[0]
    assert next(line for line in record.lines if line["what"] == "compensated")["made_up"] > 0


def test_settings_and_data_that_cannot_be() -> None:
    with pytest.raises(UsageError, match=r"channels=1.0, heads=-1, multiple=0, score='x'"):
        shrink.Settings(channels=1.0, heads=-1, multiple=0, score="x")  # type: ignore[arg-type]
    model = net("gated")
    with pytest.raises(UsageError, match="no data to shrink with"):
        shrink.refuse(shrink.Settings(channels=0.5), model, job_for(model, None))
    with pytest.raises(UsageError, match="no heads can be taken out of this model: there are none"):
        shrunk(model, items((6,)), heads=0.5)


def test_a_smaller_network_is_saved_loaded_and_exported(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    model, data = net("mobile"), items(NETS["mobile"][1])
    made, _ = shrunk(model, data, channels=0.5)
    torch.save(made.state_dict(), tmp_path / "state.pt")
    again, _ = shrunk(model, data, channels=0.5, score="magnitude", compensate=False)
    again.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert torch.equal(again(data[0]), made(data[0]))
    torch.onnx.export(
        made, (data[0],), tmp_path / "made.onnx", input_names=["x"], dynamic_axes={"x": {0: "n"}}, dynamo=False
    )
    session = runtime.InferenceSession(tmp_path / "made.onnx", providers=["CPUExecutionProvider"])
    found = session.run(None, {"x": data[1][:3].numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(found), made(data[1][:3]).detach(), rtol=1e-4, atol=1e-5)


def test_samples_are_stacked_and_zeros_stay_zeros() -> None:
    model = net("gated")
    with torch.no_grad():
        model.down.weight[:, ::3] = 0
        model.go.weight[1] = 0
    job = job_for(model, None)
    job.calibration = Dataset([{"x": each} for each in torch.randn(12, 6, generator=torch.Generator().manual_seed(0))])
    made = shrink.run(model, shrink.Settings(channels=0.25), job)
    assert made.gate.out_features == 9 and not made.go.weight[1].any()
    assert any(line["what"].endswith("compensated") for line in job.record.lines)


def test_few_places_of_a_type_are_enough() -> None:
    model, data = net("flat").bfloat16(), [x.bfloat16() for x in items(NETS["flat"][1])]
    made, _ = shrunk(model, data, channels=0.5)
    assert made.conv1.weight.dtype is torch.bfloat16 and made.conv1.out_channels == 4
