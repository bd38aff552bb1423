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
from fewbit.data.opening import open_samples, open_source, scan_source
from fewbit.data.spool import Spool
from fewbit.data.user_code import UserCodeError
from fewbit.errors import DataError, ResourceError, UsageError

torch = pytest.importorskip("torch")
data = torch.utils.data
DataLoader = data.DataLoader
Pair = namedtuple("Pair", "x y")


def elements(source):
    return [source[index] for index in range(len(source))]


class Pets(data.Dataset):
    """Two classes, as torchvision lists them; the last sample raises."""

    classes = ("cat", "dog")

    def __init__(self):
        self.targets = [0, 1, 1]

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return torch.zeros(2), 10 // (2 - index)


class Numbers(data.IterableDataset):
    def __iter__(self):
        return iter(range(7))


class Doubled(DataLoader):
    def __iter__(self):
        return (batch * 2 for batch in super().__iter__())


class Fetched(data.Dataset):
    def __len__(self):
        return 6

    def __getitems__(self, indices):
        return [index * 10 for index in indices]


# Seed 000, claims 0.1 to 0.5: the printed forms, and other loaders.


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


def test_collate_fn_that_fails_either_way_shows_its_own_error():
    def collate(blocks):
        raise ValueError("mine")

    source, _ = open_source(DataLoader({"a": torch.arange(6)}, batch_size=4, collate_fn=collate))
    with pytest.raises(UserCodeError, match="mine") as caught:
        source[1]
    assert "test_objects.py" in caught.value.where and "in collate" in caught.value.where


@pytest.mark.parametrize(
    ("loader", "batches"),
    [
        (DataLoader(torch.arange(6), batch_size=4), [[0, 1, 2, 3], [4, 5]]),
        (DataLoader(torch.arange(6), batch_size=4, drop_last=True), [[0, 1, 2, 3]]),
        (DataLoader(torch.arange(6), batch_size=2, num_workers=2), [[0, 1], [2, 3], [4, 5]]),  # needs no workers
        (DataLoader(Numbers(), batch_size=3), [[0, 1, 2], [3, 4, 5], [6]]),
        (Doubled(torch.arange(4), batch_size=2), [[0, 2], [4, 6]]),  # iterates in its own way
        (DataLoader(Fetched(), batch_sampler=[[5, 0], [3]]), [[50, 0], [30]]),
    ],
)
def test_the_batches_of_a_loader(loader, batches):
    source, report = open_source(loader)
    assert [batch.tolist() for batch in elements(source)] == batches and source.facts["batched"]
    if not report.counts["spooled"]:
        assert report.facts["samples"] == sum(map(len, batches))  # samples, not batches


def test_a_loader_over_columns_without_collate_fn_and_one_that_shuffles():
    source, report = open_source(DataLoader({"a": torch.arange(6), "b": torch.ones(6, 2)}, batch_size=4))
    assert [batch["b"].shape for batch in elements(source)] == [(4, 2), (2, 2)] and not report.counts
    source, _ = open_source(DataLoader(torch.arange(24), 5, shuffle=True))
    values = torch.cat(elements(source)).tolist()
    assert sorted(values) == list(range(24)) != values


# Claim 0.10 and B86: random state.


def test_reading_leaves_every_random_generator_alone_and_repeats_itself():
    class Noisy(data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.tensor([random.random(), np.random.rand(), torch.rand(1).item()])

    def seed():
        random.seed(1), np.random.seed(1), torch.manual_seed(1)

    def draws():
        return random.random(), np.random.rand(), torch.rand(1).item()

    generator = torch.Generator().manual_seed(5)
    state = generator.get_state()
    seed()
    expected = draws()
    seed()
    for loader in (DataLoader(Noisy(), 3, shuffle=True), DataLoader(Noisy(), 3, shuffle=True, generator=generator)):
        first, second = open_source(loader)[0], open_source(loader)[0]
        once = torch.cat(elements(first))
        assert torch.equal(once, torch.cat(elements(first))) and torch.equal(once, torch.cat(elements(second)))
        assert len(set(once[:, 2].tolist())) > 2  # it does draw
    assert draws() == expected and torch.equal(generator.get_state(), state)


def test_a_shuffled_stream_leaves_its_generator_alone():
    generator = torch.Generator().manual_seed(3)

    class Shuffled(data.IterableDataset):
        def __iter__(self):
            return iter(torch.randperm(6, generator=generator).tolist())

    state = generator.get_state()
    source, _ = open_source(DataLoader(Shuffled(), batch_size=None, generator=generator))
    assert sorted(elements(source)) == list(range(6)) and torch.equal(generator.get_state(), state)


# Other objects.


class Element:
    """A tensor of another library."""

    shape, dtype = (2,), "float32"

    def __array__(self, dtype=None, copy=None):
        return np.full(2, 7, np.float32)


class Stream:
    """Something like `tf.data`: it can be iterated over, nothing else."""

    def __iter__(self):
        return iter([{"x": Element()}] * 3)


@pytest.mark.parametrize(
    ("value", "length", "last", "batched"),
    [
        (np.arange(6).reshape(3, 2), 3, [4, 5], False),
        (torch.arange(6).reshape(3, 2), 3, [4, 5], False),
        ({"x": np.arange(3), "y": ["a", "b", "c"]}, 3, {"x": 2, "y": "c"}, False),
        ((np.arange(4), np.arange(4) * 10), 4, (3, 30), False),  # columns of one length
        ((np.arange(2), np.arange(3)), 2, [0, 1, 2], None),  # of different lengths: two elements
        ([np.arange(2), np.arange(2)], 2, [0, 1], None),
        ([{"text": "a", "label": 1}], 1, {"text": "a", "label": 1}, False),
        ([{"x": np.zeros(1)}], 1, {"x": [0.0]}, None),
        (lambda: [1, 2], 2, 2, None),
        (lambda: (number for number in range(3)), 3, 2, None),
        (Numbers(), 7, 6, False),
        (Stream(), 3, {"x": [7.0, 7.0]}, None),
        (Dataset([{"x": n} for n in range(9)]).select([3, 4]).map(lambda sample: sample["x"]), 2, 4, False),
    ],
)
def test_what_an_object_holds(value, length, last, batched):
    source, _ = open_source(value)
    element = source[length - 1]
    if isinstance(element, dict):
        element = {key: item.tolist() if isinstance(item, np.ndarray) else item for key, item in element.items()}
    element = element.tolist() if hasattr(element, "tolist") else element
    assert element == last and len(source) == length and source.facts.get("batched") is batched


@pytest.mark.parametrize("item", [(torch.zeros(2), 1), Pair(1, 2), [torch.zeros(2)], "text", {"text": "a"}])
def test_elements_come_as_they_are(item):
    assert open_source([item])[0][0] is item


def test_tokenizer_output_and_frames_are_columns():
    encoding = pytest.importorskip("transformers").BatchEncoding(
        {"input_ids": torch.arange(8).reshape(4, 2), "length": [1, 2, 3, 4]}
    )
    source, _ = open_source(encoding)
    assert len(source) == 4 and source[3]["input_ids"].tolist() == [6, 7] and source.facts["batched"] is False
    assert open_source([encoding])[0][0] is encoding  # in a list it is one input of the model
    frame = pytest.importorskip("pandas").DataFrame({"x": [1, 2], "y": ["a", "b"]})
    assert open_source(frame)[0][1] == {"x": 2, "y": "b"}


@pytest.mark.parametrize("columns", [{"a": np.zeros(3), "b": np.zeros(4)}, {"a": [1], "b": "n"}, {}, np.float32(1)])
def test_columns_without_a_common_length(columns):
    with pytest.raises(DataError, match=r"no common length|without axes") as caught:
        open_source(columns)
    assert caught.value.code == "columns-uneven"


LABELED = [
    (Pets(), ["cat", "dog", "dog"]),
    (data.Subset(Pets(), [2, 0]), ["dog", "cat"]),
    (data.TensorDataset(torch.zeros(3, 2), torch.tensor([1, 0, 1])), [1, 0, 1]),
    ((np.zeros((2, 2)), np.array([4, 5])), [4, 5]),
    ({"x": np.zeros(2), "label": ["a", "b"]}, ["a", "b"]),
    ([{"x": 1, "label": 0}, {"x": 2, "label": 1}], [0, 1]),
    ([(np.zeros(2), 7), (np.zeros(2), 8)], [7, 8]),
    ((np.zeros((2, 2)), np.zeros((2, 3))), None),
    ([{"x": 1}, {"x": 2}], None),
    (DataLoader(Pets(), 2), None),
]


@pytest.mark.parametrize(("value", "labels"), LABELED)
def test_labels_that_an_object_lists_are_its_strata(value, labels):
    source, _ = open_source(value)
    assert source.strata() == labels
    assert (Dataset.of(source).class_counts() is None) == (labels is None)


def test_a_pytorch_dataset_gives_classes_and_errors_with_the_users_line():
    source, _ = open_source(Pets())
    assert source.facts["batched"] is False and source.facts["classes"] == ["cat", "dog"] and source[0][1] == 5
    with pytest.raises(UserCodeError, match="ZeroDivisionError") as caught:
        source[2]
    assert "in __getitem__, sample 2" in caught.value.where
    assert any("> " in line and "10 // (2 - index)" in line for line in caught.value.source)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    dataset = open_samples(Pets(), on_error="drop")
    assert len(dataset) == len(list(dataset)) == 2 and dataset.report.counts == {"user-code": 1}


def test_a_function_takes_options_and_nothing_else_does():
    assert elements(open_source(lambda count: range(count), data_option={"count": 2})[0]) == [0, 1]
    with pytest.raises(UsageError, match="missing a required argument: 'count'"):
        open_source(lambda count: range(count))
    with pytest.raises(UsageError, match="has no splits"):
        open_source([1, 2], split="train")
    with pytest.raises(UsageError, match="no option 'delimiter'"):
        open_source([1, 2], data_option={"delimiter": ";"})


@pytest.mark.parametrize(
    ("value", "counts"),
    [
        ([], {"no-samples": 1}),
        (lambda: iter([]), {"no-samples": 1, "spooled": 1}),
        ([{"x": torch.ones(2)}, {"x": torch.tensor([1, math.nan])}, {"y": np.ones(2)}],
         {"not-finite": 1, "element-differs": 1}),
        (Pets(), {"user-code": 1}),
    ],
)  # fmt: skip
def test_a_full_check_finds_what_is_wrong(value, counts):
    assert scan_source(value, depth="full")[1].counts == counts


def test_locations_of_issues_and_a_quick_check():
    items = [np.ones(2), np.full(2, math.inf)]
    (error,) = scan_source({"x": items}, depth="full")[1].errors
    assert error.location.index == 1 and error.location.field == "x"
    assert not scan_source(items)[1].counts  # a quick one reads nothing
    (error,) = scan_source(Pets(), depth="full")[1].errors
    assert error.location.file.endswith("test_objects.py")


def test_checking_a_generator_does_not_use_it_up():
    generator = iter([1, 2])
    with pytest.raises(UsageError, match="use it up"):
        scan_source(generator, depth="full")
    assert list(generator) == [1, 2]


def test_sources_go_to_another_process():
    for value in (DataLoader(torch.arange(6), 2, shuffle=True), (np.arange(4), np.arange(4)), iter([1, "a"]), Pets()):
        source, _ = open_source(value)
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
    with pytest.raises(DataError, match=r"builtins\.object cannot be kept") as caught:
        open_source(iter([object()]))[0][0]
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


def again(value):
    """A value that has been on disk."""
    return Spool(lambda: iter([value]), "s")[0]


leaves = st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | st.text() | st.binary()
values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner)
)


@settings(deadline=None, max_examples=60)
@given(values)
def test_plain_values_come_back_exactly(value):
    assert repr(again(value)) == repr(value)  # also tells 1 from True, NaN included


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "int8", "uint64", "bool", "complex64", "datetime64[s]", "<U3", "S2"]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_arrays_come_back_bit_for_bit(dtype, shape):
    array = np.ones(shape, np.int64).astype(dtype)
    copy = again(array)
    assert copy.dtype == array.dtype and copy.shape == array.shape and copy.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int64", "bool", "float8_e4m3fn"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_tensors_come_back_bit_for_bit(dtype, shape):
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(getattr(torch, dtype))
    copy = again(tensor)
    assert copy.dtype == tensor.dtype and copy.shape == tensor.shape
    assert torch.equal(copy.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


@dataclass
class Box:
    size: int
    name: str


def test_containers_come_back_as_they_were():
    image = pytest.importorskip("PIL.Image").fromarray(np.arange(12, dtype=np.uint8).reshape(2, 2, 3))
    Local = namedtuple("Local", "x y")  # which pickle could not find
    copy = again({"pair": Local(1, [image]), 3: Box(2, "b"), "lone": "\ud800", "scalar": np.float32(0.1)})
    assert type(copy["pair"]) is Local and copy["pair"].y[0].tobytes() == image.tobytes()
    assert copy[3] == Box(2, "b") and copy["lone"] == "\ud800" and copy["scalar"] == np.float32(0.1)
