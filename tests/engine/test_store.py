# SPDX-License-Identifier: Apache-2.0
"""Statistics on disk: the same answer without data, other bits from the same sums, and stores that add up."""

import pytest
import torch

import fewbit
from fewbit.engine.store import Store, merge_stores
from fewbit.errors import DataError, UsageError
from tiny_models import transformer


def items(count=10, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(3, 40, (2, 24), generator=draw)} for _ in range(count)]


def compress(model, mode="int4_sym", **more):
    return fewbit.compress_weights(model, mode=mode, group_size=8, algorithm="gptq", **more)


def off(model, made):
    with torch.no_grad():
        pairs = [(model(**item).logits.double(), made(**item).logits.double()) for item in items(5, seed=9)]
    return float(sum((a - b).square().sum() for a, b in pairs) / sum(a.square().sum() for a, _ in pairs))


def test_from_a_store_the_weights_are_the_same(tmp_path):
    model = transformer("llama").eval()
    first = compress(model, dataset=items(), statistics=tmp_path / "sums")
    again = compress(model, statistics=tmp_path / "sums")
    mine, theirs = first.state_dict(), again.state_dict()
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)
    assert again.fewbit_record.facts["items"] == 10


def test_other_bits_come_from_the_same_sums(tmp_path):
    model = transformer("llama").eval()
    compress(model, dataset=items(), statistics=tmp_path / "sums")
    stored = compress(model, "int3_sym", statistics=tmp_path / "sums")
    plain = fewbit.compress_weights(model, mode="int3_sym", group_size=8, algorithm="scale_search", dataset=items())
    assert off(model, stored) < off(model, plain)


def test_stores_add_up(tmp_path):
    model = transformer("llama").eval()
    for name, seed in (("a", 1), ("b", 2)):
        compress(model, dataset=items(5, seed), statistics=tmp_path / name)
    made = merge_stores([tmp_path / "a", tmp_path / "b"], tmp_path / "both")
    assert made.items == 10
    a, b, both = (Store.open(tmp_path / name) for name in ("a", "b", "both"))
    for layers in both:
        one, two, total = (store.get(layers).sides[False] for store in (a, b, both))
        assert torch.equal(total.gram, one.gram + two.gram) and int(total.count) == int(one.count) + int(two.count)
        assert torch.equal(total.cross, one.cross + two.cross)
    assert off(model, compress(model, statistics=tmp_path / "both")) < 1


def test_what_is_wrong_is_told(tmp_path):
    model = transformer("llama").eval()
    compress(model, dataset=items(5), statistics=tmp_path / "sums")
    with pytest.raises(UsageError, match="another model"):
        compress(transformer("qwen3").eval(), statistics=tmp_path / "sums")
    with pytest.raises(UsageError, match="no statistics"):
        compress(model, statistics=tmp_path / "nowhere")
    with pytest.raises(UsageError, match="not empty"):
        compress(model, dataset=items(5), statistics=tmp_path / "sums")
    file = next((tmp_path / "sums").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-8] + b"\xff" * 8)
    with pytest.raises(DataError):
        compress(model, statistics=tmp_path / "sums")
    (tmp_path / "sums" / "store.json").write_bytes(b"{")
    with pytest.raises(DataError, match="cannot be read"):
        compress(model, statistics=tmp_path / "sums")
