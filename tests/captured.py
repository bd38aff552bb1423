# SPDX-License-Identifier: Apache-2.0
"""Small models and calls for the tests of `capture`."""

import pytest

from fewbit.data.arrays.npz_archive import read_npz
from fewbit.data.capture import capture

torch = pytest.importorskip("torch")
nn = torch.nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.drop = nn.Dropout(0.5)

    def forward(self, x, mask=None, *, scale=1.0):
        return self.drop(self.layer(x)) * scale


class Free(nn.Module):
    """Takes anything, so that tests can look at bindings alone."""

    def forward(self, *args, **kwargs):
        return None


class Named(nn.Module):
    def forward(self, a=None, b=None, c=None, **rest):
        return None


def samples(folder):
    return [read_npz(path) for path in sorted(folder.rglob("*.npz")) if "outputs" not in str(path)]


def run(model, folder, *calls, **options):
    with capture(model, folder, **options) as cap:
        for call in calls:
            model(**call) if isinstance(call, dict) else model(*call)
    return cap


def notes(cap):
    return {(note["what"], note["where"]) for note in cap.manifest["notes"]}


def hooks(model):
    return [*model._forward_pre_hooks, *model._forward_hooks, *model._forward_hooks_always_called]
