# SPDX-License-Identifier: Apache-2.0
from contextlib import contextmanager
from dataclasses import FrozenInstanceError, dataclass

import pytest
import torch
from torch import nn

from fewbit.backends.eager import guest, probing
from fewbit.backends.eager.view import EagerView


def test_only_the_models_own_gpus_are_seeded(monkeypatch):
    """No GPU is needed to see which ones are asked for: of four, the model lies on two."""
    states = dict.fromkeys(range(4), "the caller's")
    current = []

    @contextmanager
    def fork_rng(devices, enabled):
        assert enabled
        before = {device.index: states[device.index] for device in devices}
        yield
        states.update(before)

    @contextmanager
    def on(device):
        current.append(device.index)
        yield
        current.pop()

    monkeypatch.setattr(
        guest, "devices", lambda model: {torch.device("cpu"), *(torch.device("cuda", i) for i in (1, 3))}
    )
    monkeypatch.setattr(torch.random, "fork_rng", fork_rng)
    monkeypatch.setattr(torch.cuda, "device", on)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: states.update({current[-1]: seed}))
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: states.update(dict.fromkeys(states, seed)))
    with guest.lent_randomness(nn.Linear(2, 2)):
        assert states == {0: "the caller's", 1: 0, 2: "the caller's", 3: 0}
    assert set(states.values()) == {"the caller's"}


def test_nothing_of_cuda_is_touched_for_a_model_on_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "manual_seed", None)
    model = nn.Linear(2, 2)
    before = torch.get_rng_state()
    with guest.lent_randomness(model):
        torch.rand(1)
    assert torch.equal(torch.get_rng_state(), before)


@dataclass(frozen=True)
class Fixed:
    use_cache: bool = True


@dataclass
class Loose:
    use_cache: bool = True


class Configured(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.linear = nn.Linear(4, 4)
        self.seen = []

    def forward(self, x):
        self.seen.append(self.config.use_cache)
        return self.linear(x)


def test_a_configuration_that_cannot_be_changed_is_left_as_it_is():
    with pytest.raises(FrozenInstanceError):
        Fixed().use_cache = False
    model = nn.Sequential(Configured(Loose()), Configured(Fixed()), Configured(Loose()))
    EagerView(model).run([((torch.zeros(1, 4),), {})], {})
    assert [part.seen for part in model] == [[False], [True], [False]]
    assert [part.config.use_cache for part in model] == [True] * 3


def test_a_probe_that_cannot_begin_leaves_no_hook(monkeypatch):
    @contextmanager
    def fails(model):
        raise RuntimeError("no entry")
        yield

    monkeypatch.setattr(probing, "guest", fails)
    model = nn.Sequential(nn.Bilinear(4, 4, 4))
    with pytest.raises(RuntimeError, match="no entry"):
        EagerView(model).probe(((torch.zeros(1, 4),), {}))
    assert not model[0]._forward_pre_hooks
