# SPDX-License-Identifier: Apache-2.0
from collections import Counter

import numpy as np
import pytest

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


def test_a_subset_is_a_seeded_sample_over_the_whole_source():
    dataset = Dataset.of(Classes())
    subset = dataset.subset(100, seed=3)
    assert labels_of(subset) == {"night": 90, "day": 10}
    positions = [sample["x"] for sample in subset]
    assert len(set(positions)) == 100 and max(positions[:30]) > 700  # not the head, and in random order
    assert positions == [sample["x"] for sample in dataset.subset(100, seed=3)]
    assert positions != [sample["x"] for sample in dataset.subset(100, seed=4)]


@pytest.mark.parametrize("count", [1, 2, 7, 99, 999, 1000, 5000])
def test_proportions_hold_for_every_count(count):
    chosen = spread(Classes().strata(), 1000, count, seed=0)
    assert len(chosen) == len(set(chosen.tolist())) == min(count, 1000)
    days = int((chosen >= 900).sum())
    assert abs(days - min(count, 1000) / 10) < 1


def test_many_small_classes_are_not_drawn_by_name():
    """More classes than samples: which of them are drawn is chance, not their alphabet."""
    strata = [f"class{index:03}" for index in range(500)]
    chosen = spread(strata, 500, 50, seed=0)
    assert chosen.max() > 400 and chosen.min() < 100


def test_calibration_and_held_out_samples_are_disjoint_and_both_spread():
    calibration, held_out = Dataset.of(Classes()).hold_out(300)
    assert len(calibration) == 300 and len(held_out) == 32
    assert not {sample["x"] for sample in calibration} & {sample["x"] for sample in held_out}
    assert labels_of(held_out)["day"] in (3, 4) and 25 <= labels_of(calibration)["day"] <= 35


@pytest.mark.parametrize(
    ("sizes", "samples", "expected"),
    [
        ((110, 10), 300, (88, 32)),
        ((9, 0), 300, (6, 3)),
        ((7, 0), 300, (7, None)),
        ((90_000, 10_000), 20_000, (20_000, 256)),
    ],
)
def test_how_much_is_held_out(sizes, samples, expected):
    calibration, held_out = Dataset.of(Classes(sizes)).hold_out(samples)
    assert (len(calibration), None if held_out is None else len(held_out)) == expected


def test_parts_of_a_split_are_disjoint_cover_all_and_keep_proportions():
    train, val = Dataset.of(Classes()).split(0.8, 0.2)
    assert labels_of(train) == {"night": 720, "day": 80} and labels_of(val) == {"night": 180, "day": 20}
    assert not {s["x"] for s in train} & {s["x"] for s in val} and len(train) + len(val) == 1000


def test_shards_are_disjoint_and_cover_all():
    dataset = Dataset.of(Classes((10, 3)))
    shards = [[sample["x"] for sample in dataset.shard(rank, 3)] for rank in range(3)]
    assert sorted(index for shard in shards for index in shard) == list(range(13))


def test_random_access_slices_and_locations():
    dataset = Dataset.of(Classes())
    assert dataset[0]["x"] == 0 and dataset[-1]["x"] == 999 and dataset[995:][0]["x"] == 995
    assert str(dataset.subset(5).location(0)).endswith(".npz")
    with pytest.raises(IndexError):
        dataset[1000]
    assert repr(dataset) == "Dataset(Classes, 1,000 samples)"


def test_damaged_samples_are_raised_or_dropped_and_recorded():
    source = Classes((10, 0), broken=[3])
    with pytest.raises(SampleError, match=r"3\.npz"):
        list(Dataset.of(source))
    dataset = Dataset.of(source, DataReport(on_error="drop", complete=True))
    assert [sample["x"] for sample in dataset] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert dataset.record["dropped"] == ["3.npz"] and dataset.record["issues"] == {"sample-broken": 1}


def test_an_action_by_code_wins_over_the_word_for_all():
    report = DataReport(on_error={"sample-broken": "keep", "*": "drop"})
    assert report.action(BROKEN) == "keep"
    assert DataReport(on_error="repair").action(BROKEN) == "raise"  # it cannot be repaired
    assert DataReport(on_error={"*": "drop"}).action(BROKEN) == "drop"


def test_warnings_for_a_tenth_of_the_samples_are_not_ok():
    odd = IssueType("odd", Severity.WARNING, "odd sample", "look at it")
    report = DataReport(complete=True, facts={"samples": 100})
    for index in range(9):
        report.add(odd, "strange", Location(index=index))
    assert report.ok
    report.add(odd, "strange", Location(index=10))
    assert not report.ok and not report.errors


def test_counts_stay_exact_beyond_the_kept_locations(monkeypatch):
    monkeypatch.setattr("fewbit.data.types.MOST_ISSUES", 5)
    report = DataReport()
    for index in range(20):
        report.add(BROKEN, "x", Location(index=index))
    assert report.counts["sample-broken"] == 20 and len(report.issues) == 5


def test_transforms_are_chained():
    dataset = Dataset(Dataset([1, 2, 3], lambda x: x + 1), lambda x: x * 10)
    assert list(dataset) == [20, 30, 40] and list(dataset.map(str)) == ["20", "30", "40"]


@pytest.mark.parametrize("count", [0, -1, 2.5, True, "3"])
def test_wrong_counts(count):
    with pytest.raises(UsageError):
        Dataset.of(Classes()).subset(count)


def test_global_random_state_is_untouched():
    state = np.random.get_state()[1].tolist()
    Dataset.of(Classes()).hold_out(100)
    assert np.random.get_state()[1].tolist() == state
