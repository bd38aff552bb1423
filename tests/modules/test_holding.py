# SPDX-License-Identifier: Apache-2.0
import copy
import pickle

import pytest
import torch
from torch import nn

from fewbit.modules.quantized import set_weight
from fewbit.numerics.qtensor import QTensor
from tiny_models import codes, rounded


class Experts(nn.Module):
    """Reads its stack once an expert."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 6))

    def forward(self, x, fail=False):
        out = sum(x @ self.weight[expert].T for expert in range(4))
        if fail:
            raise RuntimeError("no")
        return out


@pytest.fixture
def experts(monkeypatch):
    torch.manual_seed(0)
    module, count = Experts(), []
    expected = rounded(module.weight, out=1, stack=(0,))
    set_weight(module, "weight", codes(module.weight, stack=1))
    plain = QTensor.dequantize
    monkeypatch.setattr(QTensor, "dequantize", lambda *args: count.append(1) or plain(*args))
    return module, expected, count


def test_a_stack_is_dequantized_once_a_forward_and_dropped_after_it(experts):
    module, expected, count = experts
    x = torch.randn(2, 6)
    torch.testing.assert_close(module(x), sum(x @ w.T for w in expected))
    assert len(count) == 1
    module(x)
    assert len(count) == 2
    assert not any(
        isinstance(value, dict) and "weight" in value and name != "coded" for name, value in vars(module).items()
    )


def test_it_is_dropped_after_a_failure_too(experts):
    module, _, _ = experts
    with pytest.raises(RuntimeError, match="no"):
        module(torch.randn(2, 6), fail=True)
    assert module._held is None


def test_a_forward_that_ends_in_another_thread_takes_nothing_away(experts, monkeypatch):
    """The other thread's forward is run at the worst moment: while this one dequantizes."""
    module, expected, _ = experts
    x, plain, nested = torch.randn(2, 6), QTensor.dequantize, []

    def interrupted(*arguments):
        if not nested:
            nested.append(1)
            module(x)
        return plain(*arguments)

    monkeypatch.setattr(QTensor, "dequantize", interrupted)
    torch.testing.assert_close(module(x), sum(x @ w.T for w in expected))
    assert module._held is None


def test_copies_made_during_a_forward_hold_nothing(experts):
    module, _, _ = experts
    module._held = {"weight": torch.ones(3)}
    copies = [copy.copy(module), copy.deepcopy(module), module.__getstate__(), module.__reduce_ex__(2)[2]]
    assert not any(vars(made).get("_held") for made in copies[:2]) and not any("_held" in made for made in copies[2:])
    assert b"_held" not in pickle.dumps(module.__getstate__())
