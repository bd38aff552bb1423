# SPDX-License-Identifier: Apache-2.0
"""Statistics on disk: the same answer without data, other bits from the same sums, and stores that add up."""

import pytest
import torch

import fewbit
from fewbit.engine.merging import describe_statistics
from fewbit.engine.store import Store
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


def test_they_are_kept_whatever_the_algorithm_needs(tmp_path):
    model = transformer("llama").eval()
    plain = {"mode": "int8_asym", "algorithm": "scale_search"}
    first = fewbit.compress_weights(model, **plain, dataset=items(), statistics=tmp_path / "sums")
    again = fewbit.compress_weights(model, **plain, statistics=tmp_path / "sums")
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in first.state_dict().items())
    assert off(model, compress(model, statistics=tmp_path / "sums")) < 0.1


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
    assert fewbit.merge_statistics([tmp_path / "a", tmp_path / "b"], tmp_path / "both") == tmp_path / "both"
    a, b, both = (Store.open(tmp_path / name) for name in ("a", "b", "both"))
    assert both.items == 10
    for layers in both:
        for aside in (False, True):
            one, two, total = (store.get(layers).sides[aside].tensors() for store in (a, b, both))
            assert one.keys() == total.keys() and all(torch.equal(total[key], one[key] + two[key]) for key in total)
    assert off(model, compress(model, statistics=tmp_path / "both")) < 1
    shown = describe_statistics(tmp_path / "both")
    assert (shown["items"], shown["tokens"], shown["jobs"]) == (10, 10 * 2 * 24, 2)
    assert shown["bytes"] == sum(path.stat().st_size for path in (tmp_path / "both").glob("*.safetensors"))


def test_two_halves_are_what_one_run_sees(tmp_path):
    """Of the first layers, whose inputs no rounding has changed yet; the later ones of each half are near."""
    model = transformer("llama").eval()
    for name, part in (("whole", items(20)), ("a", items(20)[:10]), ("b", items(20)[10:])):
        compress(model, mode="int8_sym", dataset=part, statistics=tmp_path / name)
    fewbit.merge_statistics([tmp_path / "a", tmp_path / "b"], tmp_path / "both")
    whole, both = Store.open(tmp_path / "whole"), Store.open(tmp_path / "both")
    assert set(whole) == set(both) and whole.items == both.items
    for number, layers in enumerate(whole):
        # Which samples are held out is drawn for each run, so only both parts together are the same.
        one, two = ([store.get(layers).sides[aside] for aside in (False, True)] for store in (whole, both))
        assert [int(side.count) for side in one] == [int(side.count) for side in two]
        near = 1e-5 if number == 0 else 0.05
        one_gram, two_gram = (sides[False].gram + sides[True].gram for sides in (one, two))
        torch.testing.assert_close(one_gram, two_gram, rtol=near, atol=near * float(one_gram.max()))


def test_files_are_named_by_what_is_in_them(tmp_path):
    model = transformer("llama").eval()
    for name, seed in (("a", 1), ("again", 1), ("other", 2)):
        compress(model, dataset=items(5, seed), statistics=tmp_path / name)
    a, again, other = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("a", "again", "other"))
    assert a == again
    assert a.keys() & other.keys() == {"store.json"}


def test_a_job_that_was_stopped_begins_its_store_anew(tmp_path, monkeypatch):
    model = transformer("llama").eval()
    compress(model, dataset=items(5), statistics=tmp_path / "whole")
    put = Store.put

    def fail(self, layers, seen):
        if len(self.stages) == 3:
            raise KeyboardInterrupt
        put(self, layers, seen)

    monkeypatch.setattr(Store, "put", fail)
    with pytest.raises(KeyboardInterrupt):
        compress(model, dataset=items(5), statistics=tmp_path / "stopped")
    monkeypatch.undo()
    (tmp_path / "stopped" / ".store.json.0123").write_bytes(b"{")  # killed while the list was written
    with pytest.raises(UsageError, match="not empty"):
        compress(model, dataset=items(6), statistics=tmp_path / "stopped")
    with pytest.raises(UsageError, match="no statistics"):
        compress(model, statistics=tmp_path / "stopped")
    for _ in range(2):  # and once more when it is whole: killed before the result was written
        compress(model, dataset=items(5), statistics=tmp_path / "stopped")
        whole, stopped = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("whole", "stopped"))
        assert whole == stopped


def test_what_does_not_add_up_is_told_at_once(tmp_path):
    model = transformer("llama").eval()
    compress(model, dataset=items(5), statistics=tmp_path / "a")
    compress(model, "int3_sym", dataset=items(5, 1), statistics=tmp_path / "bits")
    compress(transformer("qwen3").eval(), dataset=items(5, 2), statistics=tmp_path / "model")
    with pytest.raises(UsageError) as told:
        fewbit.merge_statistics([tmp_path / name for name in ("a", "bits", "model", "a")], tmp_path / "all")
    for part in ("bits is with layers that were rounded differently", "model is of another model", "has the data of"):
        assert part in str(told.value)
    with pytest.raises(UsageError, match="two stores"):
        fewbit.merge_statistics(tmp_path / "a", tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_what_is_wrong_is_told(tmp_path):
    model = transformer("llama").eval()
    compress(model, dataset=items(5), statistics=tmp_path / "sums")
    with pytest.raises(UsageError, match="another model"):
        compress(transformer("qwen3").eval(), statistics=tmp_path / "sums")
    with pytest.raises(UsageError, match="no statistics"):
        compress(model, statistics=tmp_path / "nowhere")
    with pytest.raises(UsageError, match="not empty"):
        compress(model, dataset=items(6), statistics=tmp_path / "sums")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file"):
        compress(model, dataset=items(5), statistics=tmp_path / "file")
    file = next((tmp_path / "sums").glob("*.safetensors"))
    content = file.read_bytes()
    file.write_bytes(content[:-8] + b"\xff" * 8)
    with pytest.raises(DataError, match=file.name):
        compress(model, statistics=tmp_path / "sums")
    file.write_bytes(content[:-8])
    with pytest.raises(DataError, match=file.name):
        Store.open(tmp_path / "sums")
    (tmp_path / "sums" / "store.json").write_bytes(b"{")
    with pytest.raises(DataError, match="cannot be read"):
        compress(model, statistics=tmp_path / "sums")
