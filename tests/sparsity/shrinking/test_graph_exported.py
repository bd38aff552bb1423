# SPDX-License-Identifier: Apache-2.0
"""Transformers as PyTorch exports them, with shapes that the graph computes: heads and inner channels out of them."""

from __future__ import annotations

import io
import warnings

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from onnx_graphs import random, run
from shrinking_graphs import arrays, close, counts, shrunk, without


class Block(nn.Module):
    """A block of a transformer whose queries, keys and values are one layer."""

    def __init__(self, width=16, heads=4):
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 24), nn.Linear(24, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.outer(gelu(self.inner(self.norm2(x))))


def exported(module, open_axes):
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter that needs no other library, and is to go one day
        torch.onnx.export(
            module.eval(),
            (torch.zeros(2, 6, 16),),
            file,
            input_names=["x"],
            dynamic_axes={"x": open_axes},
            dynamo=False,
        )
    return onnx.load_from_string(file.getvalue())


OPEN = {"nothing": {}, "batch": {0: "batch"}, "length": {0: "batch", 1: "length"}}


@pytest.mark.parametrize(
    ("kind", "what"), [("fused", "nothing"), ("fused", "length"), ("torch", "nothing"), ("torch", "batch")]
)
def test_an_exported_block_loses_heads_and_inner_channels(kind, what):
    torch.manual_seed(3)
    block = Block() if kind == "fused" else nn.TransformerEncoderLayer(16, 4, 24, batch_first=True)
    proto = exported(nn.Sequential(block, nn.Linear(16, 3)), OPEN[what])
    small, facts, lines = shrunk(proto, heads=0.5)
    onnx.checker.check_model(small, full_check=True)
    assert [one["before"] for one in facts["groups"] if one["kind"] == "heads"] == [4]
    assert (4, 2) in counts(facts).values() and (24, 12) in counts(facts).values()
    assert not any(line["what"] == "shrink-again" for line in lines)
    before, after = arrays(proto), arrays(small)
    cleared = {}
    for name, whole in before.items():
        if name in after and whole.ndim == 2 and after[name].size < whole.size:
            turned = any(node.op_type == "Gemm" and name in node.input for node in proto.graph.node)
            found = np.isin(whole, after[name]).any(0 if turned else 1)
            cleared[name] = (1 if turned else 0, np.flatnonzero(~found))
    assert cleared
    for batch, length in {"nothing": [(2, 6)], "batch": [(1, 6), (5, 6)], "length": [(1, 3), (5, 9)]}[what]:
        x = random(batch, length, 16, seed=batch)
        close(run(small, x=x), run(without(proto, **cleared), x=x))
