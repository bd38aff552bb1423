# SPDX-License-Identifier: Apache-2.0
"""`Dataset`: order, draws, damaged samples, identity."""

from collections import Counter

import numpy as np
import pytest

import fewbit
from fewbit.data.dataset import Dataset
from fewbit.data.types import DataReport, Issue, IssueType, Location, SampleError, Severity, spread
from fewbit.errors import UsageError

BROKEN = IssueType("sample-broken", Severity.ERROR, "broken sample", "repair it", "raise", ("drop",))


class Classes:
    """A source of 900 samples of `night` followed by 100 of `day`; some may be broken."""

    def __init__(self, sizes=(900, 100), broken=()):
        self.labels = ["night"] * sizes[0] + ["day"] * sizes[1]
        self.facts = {"classes": ["day", "night"]}
        self.broken = set(broken)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        if index in self.broken:
            raise SampleError(Issue(BROKEN, "cannot be read", self.location(index)))
        return {"x": index, "label": self.labels[index]}

    def location(self, index):
        return Location(f"{index}.npz", index=index)

    def strata(self):
        return self.labels


def labels_of(dataset):
    return Counter(sample["label"] for sample in dataset)


def numbers(dataset):
    return [sample["x"] for sample in dataset]


def test_a_subset_is_a_seeded_sample_over_the_whole_source():
    dataset = Dataset.of(Classes())
    subset = dataset.subset(100, seed=3)
    assert labels_of(subset) == {"night": 90, "day": 10}
    positions = numbers(subset)
    assert len(set(positions)) == 100 and max(positions[:30]) > 700  # not the head, and in random order
    assert positions == numbers(dataset.subset(100, seed=3)) != numbers(dataset.subset(100, seed=4))
    assert positions[:50] == numbers(dataset.subset(50, seed=3))  # a smaller draw is the beginning of a larger one


@pytest.mark.parametrize("count", [1, 2, 7, 99, 999, 1000, 5000])
def test_proportions_hold_for_every_count(count):
    chosen = spread(Classes().strata(), 1000, count, seed=0)
    assert len(chosen) == len(set(chosen.tolist())) == min(count, 1000)
    assert abs(int((chosen >= 900).sum()) - min(count, 1000) / 10) < 1.2


def test_many_small_classes_are_covered_evenly_and_not_drawn_by_name():
    strata = [f"class{index // 5:03}" for index in range(500)]
    assert set(Counter(strata[index] for index in spread(strata, 500, 300)).values()) == {3}
    fewer_than_classes = spread(strata, 500, 50)
    assert len({strata[index] for index in fewer_than_classes}) == 50
    assert fewer_than_classes.max() > 400 and fewer_than_classes.min() < 100


@pytest.mark.parametrize(
    ("sizes", "samples", "expected"),
    [
        ((900, 100), 300, (300, 32)),
        ((110, 10), 300, (88, 32)),
        ((9, 0), 300, (6, 3)),
        ((7, 0), 300, (7, 0)),
        ((90_000, 10_000), 20_000, (20_000, 256)),
    ],
)
def test_calibration_and_held_out_samples_are_disjoint_and_both_spread(sizes, samples, expected):
    calibration, held_out = Dataset.of(Classes(sizes)).hold_out(samples)
    assert (len(calibration), len(held_out)) == expected
    assert not set(numbers(calibration)) & set(numbers(held_out))
    for part in (calibration, held_out):
        assert abs(labels_of(part)["day"] - len(part) * sizes[1] / sum(sizes)) < 1.5


def test_too_few_samples_to_hold_some_out_are_told():
    dataset = Dataset.of(Classes((7, 0)))
    dataset.hold_out(300)
    assert [issue.message for issue in dataset.report.warnings if issue.code == "held-out-none"] == [
        "7 samples; it takes 8"
    ]


def test_calibration_that_misses_classes_is_a_warning_with_both_counts():
    images = [{"x": number, "label": f"class{number:02}"} for number in range(50)]
    dataset = Dataset(images)
    dataset.hold_out(10)
    (warning,) = dataset.report.warnings
    assert warning.code == "calibration-few-classes"
    assert warning.message.startswith("10 samples of 10 of 50 classes; none of class")
    enough = Dataset([{"x": number, "label": number % 5} for number in range(50)])
    enough.hold_out(10)
    assert not enough.report.warnings


def test_parts_of_a_split_are_disjoint_cover_all_and_keep_proportions():
    train, val = Dataset.of(Classes()).split(0.8, 0.2)
    assert labels_of(train) == {"night": 720, "day": 80} and labels_of(val) == {"night": 180, "day": 20}
    assert sorted(numbers(train) + numbers(val)) == list(range(1000))
    shards = [numbers(Dataset.of(Classes((10, 3))).shard(rank, 3)) for rank in range(3)]
    assert sorted(number for shard in shards for number in shard) == list(range(13))


def test_random_access_slices_and_locations():
    dataset = Dataset.of(Classes())
    assert dataset[0]["x"] == 0 and dataset[-1]["x"] == 999 and dataset[995:][0]["x"] == 995
    assert str(dataset.subset(5).location(0)).endswith(".npz")
    with pytest.raises(IndexError):
        dataset[1000]
    assert repr(dataset) == "Dataset(Classes, 1,000 samples)"


# Damaged samples.


def test_damaged_samples_are_raised_or_dropped_and_recorded_once():
    source = Classes((10, 0), broken=[3])
    with pytest.raises(SampleError, match=r"3\.npz"):
        list(Dataset.of(source))
    dataset = Dataset.of(source, DataReport(on_error="drop", complete=True))
    for part in (dataset, dataset, dataset.subset(10)):
        assert sorted(numbers(part)) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert dataset.record["dropped"] == ["3.npz"] and dataset.record["issues"] == {"sample-broken": 1}
    with pytest.raises(SampleError):
        dataset[3]


def test_errors_at_one_line_of_the_users_code_are_counted_by_sample():
    class Rows:
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return 1 // (index % 2)

    dataset = fewbit.open_dataset(Rows(), on_error="drop")
    assert len(dataset) == 3 and dataset.report.counts == {"user-code": 3} and len(dataset.record["dropped"]) == 3


def test_length_indexing_and_iteration_agree_without_damaged_samples():
    dataset = Dataset.of(Classes((10, 0), broken=[3]), DataReport(on_error="drop")).drop_damaged()
    assert len(dataset) == len(list(dataset)) == 9 and dataset[3]["x"] == 4
    with pytest.raises(SampleError):
        Dataset.of(Classes((10, 0), broken=[3])).drop_damaged()  # nobody said to drop


@pytest.mark.parametrize("options", [{}, {"samples": 20}])
def test_open_dataset_leaves_out_what_is_damaged(tmp_path, options):
    values = np.ones((20, 3), np.float32)
    values[4, 0] = np.nan
    np.savez(tmp_path / "a.npz", x=values)
    (tmp_path / "rows.csv").write_text("text,size\n" + "".join(f"row {n},{n}\n" for n in range(40)) + "short\n")
    stacked = fewbit.open_dataset(tmp_path / "a.npz", data_option={"stacked": True}, on_error="drop")
    assert len(stacked) == len(list(stacked)) == 19
    rows = fewbit.open_dataset(tmp_path / "rows.csv", on_error="drop", **options)
    assert len(rows) == len(list(rows)) == min(options.get("samples", 40), 40)
    numbers = fewbit.open_dataset(Classes((10, 0), broken=[3]), on_error={"*": "drop"}, **options)
    assert len(numbers) == len(list(numbers)) == 9


def test_a_stream_is_not_read_to_drop_something():
    def forever():
        while True:
            yield {"x": 1}

    assert next(iter(fewbit.open_dataset(forever(), on_error="drop"))) == {"x": 1}


# Identity and the rest.


def test_the_fingerprint_follows_content_and_selection(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\n")
    dataset = fewbit.open_dataset(path)
    assert dataset.fingerprint == fewbit.open_dataset(path).fingerprint is not None
    assert dataset[:0].fingerprint != dataset.fingerprint
    path.write_text("one two\n")
    assert fewbit.open_dataset(path).fingerprint != dataset[:].fingerprint
    assert Dataset([1, 2]).fingerprint is None
    source = Classes()
    source.fingerprint = "abc"
    assert Dataset.of(source).fingerprint == "abc"


def test_transforms_are_chained():
    dataset = Dataset(Dataset([1, 2, 3], lambda x: x + 1), lambda x: x * 10)
    assert list(dataset) == [20, 30, 40] and list(dataset.map(str)) == ["20", "30", "40"]


@pytest.mark.parametrize("count", [0, -1, 2.5, True, "3"])
def test_wrong_counts(count):
    with pytest.raises(UsageError):
        Dataset.of(Classes()).subset(count)
    with pytest.raises(UsageError):
        Dataset.of(Classes()).split(0.8, 0.3)


def test_global_random_state_is_untouched():
    state = np.random.get_state()[1].tolist()
    Dataset.of(Classes()).hold_out(100)
    assert np.random.get_state()[1].tolist() == state


def test_showing_a_stream_does_not_read_it():
    def numbers():
        yield {"x": 0}
        raise AssertionError("read too far")

    assert repr(Dataset(numbers())) == "Dataset(objects, a stream)"
