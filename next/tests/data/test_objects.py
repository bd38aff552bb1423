# SPDX-License-Identifier: Apache-2.0
"""Objects in memory: every form of seed 000, and what people really pass."""

from __future__ import annotations

import math
import os
import pickle
import random
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data import spool
from fewbit.data.dataset import Dataset
from fewbit.data.opening import open_source, scan_source
from fewbit.data.spool import Spool
from fewbit.data.user_code import UserCodeError
from fewbit.errors import DataError, ResourceError, UsageError

torch = pytest.importorskip("torch")
data = torch.utils.data
DataLoader = data.DataLoader
device = None


def elements(source):
    return [source[index] for index in range(len(source))]


# Seed 000, claims 0.1 to 0.5: the three printed forms.


def test_loader_over_a_tensor():
    input_tensor = torch.rand(128, 128)
    source, report = open_source(DataLoader(input_tensor, batch_size=4, shuffle=False))
    assert len(source) == 32 and source[0].shape == (4, 128)
    assert source.facts["batched"] and source.facts["batch_size"] == 4
    assert report.facts["samples"] == 128  # samples, not batches
    assert torch.equal(torch.cat(elements(source)), input_tensor)


@pytest.mark.parametrize("wrap", [lambda tensor: {"input_ids": tensor}, lambda tensor: tensor])
def test_loader_over_a_list_without_batch_size(wrap):
    input_list = [wrap(torch.rand(128, 128)), wrap(torch.rand(128, 128))]
    source, _ = open_source(DataLoader(input_list, batch_size=None, shuffle=False))
    assert len(source) == 2 and "batched" not in source.facts  # only their author knows
    value = source[1]["input_ids"] if isinstance(source[1], dict) else source[1]
    assert value.shape == (128, 128)  # never cut


@pytest.mark.parametrize("device", [None, "cpu"])
def test_loader_over_a_dict_with_the_printed_collate_fn(device):
    # PyTorch asks such a dict for the key 0 and fails; and torch.Tensor cannot be built from tensors (B85).
    def my_collate_fn(blocks):
        data_batch = {}
        data_batch["input_ids"] = torch.Tensor([block["input_ids"] for block in blocks])
        if device:
            data_batch["input_ids"] = data_batch["input_ids"].to(device)
        return data_batch

    input_dict = {"input_ids": torch.rand(128, 128)}
    source, report = open_source(DataLoader(input_dict, batch_size=4, collate_fn=my_collate_fn))
    batches = elements(source)
    assert len(batches) == 32 and report.facts["samples"] == 128
    assert torch.equal(torch.cat([batch["input_ids"] for batch in batches]), input_dict["input_ids"])
    assert report.counts["rows-as-lists"] == 1


def test_loader_over_a_dict_without_collate_fn():
    source, report = open_source(DataLoader({"a": torch.arange(6), "b": torch.ones(6, 2)}, batch_size=4))
    assert [batch["b"].shape for batch in elements(source)] == [(4, 2), (2, 2)]
    assert not report.counts


def test_collate_fn_that_fails_either_way_shows_its_own_error():
    def collate(blocks):
        raise ValueError("mine")

    source, _ = open_source(DataLoader({"a": torch.arange(6)}, batch_size=4, collate_fn=collate))
    with pytest.raises(UserCodeError, match="mine") as caught:
        source[1]
    assert "test_objects.py" in caught.value.where and "in collate" in caught.value.where


def test_no_sample_is_lost_whatever_the_batch_size():
    rows = torch.arange(24)
    for loader in (DataLoader(rows, 5), DataLoader(rows, 5, shuffle=True), DataLoader(rows, 5, drop_last=True)):
        source, report = open_source(loader)
        values = torch.cat(elements(source)).tolist()
        expected = 20 if loader.drop_last else 24
        assert len(set(values)) == expected == report.facts["samples"]


def test_tokenizer_output_is_a_dict_of_columns():
    transformers = pytest.importorskip("transformers")
    encoding = transformers.BatchEncoding({"input_ids": torch.arange(8).reshape(4, 2), "length": [1, 2, 3, 4]})
    source, _ = open_source(encoding)
    assert len(source) == 4 and source[3]["input_ids"].tolist() == [6, 7] and source.facts["batched"] is False
    item = open_source([encoding])[0][0]
    assert item is encoding  # in a list it is one input of the model


def test_loader_with_workers_needs_none():
    source, _ = open_source(DataLoader(torch.arange(6), batch_size=2, num_workers=2))
    assert [batch.tolist() for batch in elements(source)] == [[0, 1], [2, 3], [4, 5]]


def test_loader_over_a_stream_is_spooled():
    class Numbers(data.IterableDataset):
        def __iter__(self):
            return iter(range(7))

    source, report = open_source(DataLoader(Numbers(), batch_size=3))
    assert source[0].tolist() == [0, 1, 2] and source.facts["batched"]
    assert [batch.tolist() for batch in elements(source)][-1] == [6] and report.counts["spooled"] == 1


def test_loader_that_iterates_in_its_own_way_is_left_to_it():
    class Doubled(DataLoader):
        def __iter__(self):
            return (batch * 2 for batch in super().__iter__())

    source, _ = open_source(Doubled(torch.arange(4), batch_size=2))
    assert [batch.tolist() for batch in elements(source)] == [[0, 2], [4, 6]]


def test_custom_batch_sampler_and_getitems():
    class Rows(data.Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            raise AssertionError("one by one")

        def __getitems__(self, indices):
            return [index * 10 for index in indices]

    source, _ = open_source(DataLoader(Rows(), batch_sampler=[[5, 0], [3]]))
    assert [batch.tolist() for batch in elements(source)] == [[50, 0], [30]]


# Claim 0.10 and B86: random state.


def draws():
    return random.random(), np.random.rand(), torch.rand(1).item()


def test_reading_leaves_every_random_generator_alone_and_repeats_itself():
    class Noisy(data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.tensor([random.random(), np.random.rand(), torch.rand(1).item()])

    generator = torch.Generator().manual_seed(5)
    before = generator.get_state()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = draws()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    for loader in (DataLoader(Noisy(), 3, shuffle=True), DataLoader(Noisy(), 3, shuffle=True, generator=generator)):
        first, second = open_source(loader)[0], open_source(loader)[0]
        once = torch.cat(elements(first))
        assert torch.equal(once, torch.cat(elements(first))) and torch.equal(once, torch.cat(elements(second)))
        assert len(set(once[:, 2].tolist())) > 2  # it does draw
    assert draws() == expected and torch.equal(generator.get_state(), before)


def test_a_shuffled_stream_leaves_its_generator_alone():
    generator = torch.Generator().manual_seed(3)

    class Shuffled(data.IterableDataset):
        def __iter__(self):
            return iter(torch.randperm(6, generator=generator).tolist())

    loader = DataLoader(Shuffled(), batch_size=None, generator=generator)
    before = generator.get_state()
    source, _ = open_source(loader)
    assert sorted(elements(source)) == list(range(6))
    assert torch.equal(generator.get_state(), before)


# Other objects.


@pytest.mark.parametrize("array", [np.arange(6).reshape(3, 2), torch.arange(6).reshape(3, 2)])
def test_arrays_and_tensors_are_samples_along_the_first_axis(array):
    source, report = open_source(array)
    assert (len(source), source.facts["batched"], source[1].tolist()) == (3, False, [2, 3])
    assert report.facts["samples"] == 3


def test_an_array_without_axes_is_no_dataset():
    with pytest.raises(DataError, match="without axes"):
        open_source(np.float32(1))


def test_a_dict_of_columns_is_one_sample_per_row():
    source, _ = open_source({"x": np.arange(3), "y": ["a", "b", "c"]})
    assert source[2] == {"x": 2, "y": "c"} and source.facts["columns"] == ["x", "y"]


@pytest.mark.parametrize("columns", [{"a": np.zeros(3), "b": np.zeros(4)}, {"a": [1, 2], "b": "no"}, {}])
def test_columns_without_a_common_length(columns):
    with pytest.raises(DataError, match="no common length") as caught:
        open_source(columns)
    assert caught.value.code == "columns-uneven"


def test_a_tuple_of_arrays_is_columns_and_a_list_is_samples():
    x, y = np.arange(8).reshape(4, 2), np.arange(4)
    source, _ = open_source((x, y))
    assert len(source) == 4 and source[3][0].tolist() == [6, 7] and source[3][1] == 3
    assert len(open_source([x, x])[0]) == 2
    assert len(open_source((x, np.arange(3)))[0]) == 2  # of different lengths: two elements


def test_elements_come_as_they_are():
    Pair = namedtuple("Pair", "x y")
    for item in ((torch.zeros(2), 1), Pair(1, 2), [torch.zeros(2)], "text", {"text": "a"}):
        assert open_source([item])[0][0] is item


def test_rows_of_texts_have_no_batch_axis():
    assert open_source(["a", "b"])[0].facts["batched"] is False
    assert open_source([{"text": "a", "label": 1}])[0].facts["batched"] is False
    assert "batched" not in open_source([{"x": np.zeros(3)}])[0].facts


def test_pandas_frames_are_columns():
    pandas = pytest.importorskip("pandas")
    source, _ = open_source(pandas.DataFrame({"x": [1, 2], "y": ["a", "b"]}))
    assert source[1] == {"x": 2, "y": "b"}


class Pets(data.Dataset):
    classes = ("cat", "dog")
    targets = (0, 1, 1)

    def __init__(self):
        self.targets = [0, 1, 1]

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return torch.zeros(2), 10 // (2 - index)


def test_a_pytorch_dataset_gives_samples_classes_and_strata():
    source, _ = open_source(Pets())
    assert source.facts["batched"] is False and source.facts["classes"] == ["cat", "dog"]
    assert source.strata() == ["cat", "dog", "dog"] and source[0][1] == 5


def test_errors_of_a_dataset_name_the_users_line_and_the_sample():
    source, _ = open_source(Pets())
    with pytest.raises(UserCodeError, match="ZeroDivisionError") as caught:
        source[2]
    assert "in __getitem__, sample 2" in caught.value.where
    assert any("> " in line and "10 // (2 - index)" in line for line in caught.value.source)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_damaged_sample_is_dropped_if_the_user_says_so():
    source, report = open_source(Pets(), on_error="drop")
    assert len(list(Dataset.of(source, report))) == 2 and report.counts["user-code"] == 1


def test_a_dataset_of_fewbit_is_its_samples():
    inner = Dataset([{"x": number} for number in range(10)]).select([3, 4]).map(lambda sample: sample["x"])
    source, _ = open_source(inner)
    assert elements(source) == [3, 4]


def test_a_function_is_what_it_returns():
    assert elements(open_source(lambda: [1, 2])[0]) == [1, 2]
    assert open_source(lambda: torch.zeros(3, 2))[0].facts["batched"] is False
    assert elements(open_source(lambda: (number for number in range(3)))[0]) == [0, 1, 2]
    assert elements(open_source(lambda count: range(count), data_option={"count": 2})[0]) == [0, 1]
    with pytest.raises(UsageError, match="missing a required argument: 'count'"):
        open_source(lambda count: range(count))


def test_a_stream_like_tf_data():
    class Element:
        shape, dtype = (2,), "float32"

        def __init__(self, value):
            self.value = value

        def __array__(self, dtype=None, copy=None):
            return np.full(2, self.value, np.float32)

    class Stream:
        def __iter__(self):
            return iter({"x": Element(number)} for number in range(8))

    source, _ = open_source(Stream())
    assert source[7]["x"].tolist() == [7.0, 7.0] and len(source) == 8


def test_nothing_is_an_empty_dataset_and_an_empty_list_is_an_issue():
    assert len(open_source(None)[0]) == 0
    assert scan_source([])[1].counts == {"no-samples": 1}
    assert scan_source(lambda: iter([]), depth="full")[1].counts["no-samples"] == 1


@pytest.mark.parametrize("wrong", [7, object(), 1.5])
def test_what_holds_no_samples_is_refused(wrong):
    with pytest.raises(DataError) as caught:
        open_source(wrong)
    assert caught.value.code == "object-unknown"


def test_objects_have_no_splits_and_no_options():
    with pytest.raises(UsageError, match="has no splits"):
        open_source([1, 2], split="train")
    with pytest.raises(UsageError, match="no option 'delimiter'"):
        open_source([1, 2], data_option={"delimiter": ";"})


def test_a_full_check_finds_nan_and_odd_elements():
    items = [{"x": torch.ones(2, 2)}, {"x": torch.full((2, 2), float("nan"))}, {"y": np.ones(2)}]
    report = scan_source(items, depth="full")[1]
    assert report.counts == {"not-finite": 1, "element-differs": 1}
    assert report.errors[0].location.index == 1 and report.errors[0].location.field == "x"
    assert not scan_source(items)[1].counts  # a quick one reads nothing


def test_a_full_check_reports_what_user_code_raises():
    report = scan_source(Pets(), depth="full")[1]
    assert report.counts == {"user-code": 1} and report.errors[0].location.file.endswith("test_objects.py")


def test_checking_a_generator_does_not_use_it_up():
    generator = iter([1, 2])
    with pytest.raises(UsageError, match="use it up"):
        scan_source(generator, depth="full")
    assert list(generator) == [1, 2]


def test_sources_go_to_another_process():
    for data in (DataLoader(torch.arange(6), 2, shuffle=True), (np.arange(4), np.arange(4)), iter([1, "a"]), Pets()):
        source, _ = open_source(data)
        again = pickle.loads(pickle.dumps(source))
        assert str(again[1]) == str(source[1]) and len(again) == len(source)


# Streams (B87).


def test_a_generator_is_read_only_as_far_as_needed_and_again_from_disk():
    read = []

    def generate():
        for number in range(100):
            read.append(number)
            yield {"x": np.full(3, number), "name": f"n{number}"}

    source, report = open_source(generate())
    assert source[0]["name"] == "n0" and read == [0]
    assert source[4]["x"].tolist() == [4, 4, 4] and len(read) == 5
    assert source[1]["name"] == "n1" and len(read) == 5  # back without asking the generator
    assert "samples" not in report.facts and len(source) == 100 and len(read) == 100
    first = [element["x"].tobytes() for element in elements(source)]
    assert first == [element["x"].tobytes() for element in elements(source)] and len(read) == 100


def test_the_file_goes_with_the_stream():
    spooled = Spool(lambda: iter([1]), "s")
    path = spooled._path
    assert spooled[0] == 1 and os.path.exists(path)
    del spooled
    assert not os.path.exists(path)


def test_an_error_in_a_generator_names_its_line():
    def generate():
        yield 1
        raise RuntimeError("broken pipe")

    source, _ = open_source(generate())
    with pytest.raises(UserCodeError, match="broken pipe") as caught:
        len(source)
    assert caught.value.where.endswith("in generate, sample 1")


def test_what_has_no_safe_form_is_refused_with_a_way_out():
    source, _ = open_source(iter([object()]))
    with pytest.raises(DataError, match=r"builtins\.object cannot be kept") as caught:
        source[0]
    assert caught.value.code == "not-spoolable" and "list" in caught.value.hint


def test_a_stream_without_end_stops_before_the_disk_is_full(monkeypatch):
    monkeypatch.setattr(spool, "_CHECK_EVERY", 1000)
    monkeypatch.setattr(spool, "LEAST_FREE", 1 << 62)

    def forever():
        while True:
            yield b"x" * 500

    source, _ = open_source(forever())
    assert source[0] == b"x" * 500
    with pytest.raises(ResourceError, match="filled the disk"):
        len(source)


@dataclass
class Box:
    size: int
    name: str


leaves = st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | st.text() | st.binary()
values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner)
)


@settings(deadline=None, max_examples=60)
@given(values)
def test_plain_values_come_back_exactly(value):
    again = Spool(lambda: iter([value]), "s")[0]
    assert repr(again) == repr(value)  # also tells 1 from True, NaN included


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "int8", "uint64", "bool", "complex64", "datetime64[s]", "<U3", "S2"]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_arrays_come_back_bit_for_bit(dtype, shape):
    array = np.ones(shape, np.int64).astype(dtype)
    again = Spool(lambda: iter([array]), "s")[0]
    assert again.dtype == array.dtype and again.shape == array.shape and again.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int64", "bool", "float8_e4m3fn"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_tensors_come_back_bit_for_bit(dtype, shape):
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(getattr(torch, dtype))
    again = Spool(lambda: iter([tensor]), "s")[0]
    assert again.dtype == tensor.dtype and again.shape == tensor.shape
    assert torch.equal(again.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_containers_come_back_as_they_were():
    image = pytest.importorskip("PIL.Image").fromarray(np.arange(12, dtype=np.uint8).reshape(2, 2, 3))
    Pair = namedtuple("Pair", "x y")
    element = {"pair": Pair(1, [image]), 3: Box(2, "b"), "lone": "\ud800", "scalar": np.float32(0.1)}
    again = Spool(lambda: iter([element]), "s")[0]
    assert type(again["pair"]) is Pair and again["pair"].y[0].tobytes() == image.tobytes()
    assert again[3] == Box(2, "b") and again["lone"] == "\ud800" and again["scalar"] == np.float32(0.1)
