# SPDX-License-Identifier: Apache-2.0
"""Mixing: by weight, to the end of the first or of all, every source counted."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.data.opening import open_source
from fewbit.data.steps import mixing
from fewbit.errors import DataError, UsageError
from step_context import Stream, apply, context


def rows(name, count):
    return [{"text": f"{name}{index}"} for index in range(count)]


@given(
    st.lists(st.tuples(st.integers(1, 20), st.floats(0.1, 10)), min_size=1, max_size=4),
    st.sampled_from(mixing.STOPS),
    st.integers(0, 5),
)
def test_parts_give_their_samples_in_order_until_the_stop(parts, stop, seed):
    lengths, weights = np.array([n for n, _ in parts]), np.array([w for _, w in parts])
    part, inside = mixing.interleave(lengths, weights, stop, seed)
    through = []
    for number, length in enumerate(lengths):
        given_ = inside[part == number]
        assert given_.tolist() == [index % length for index in range(len(given_))]
        through.append(len(given_) >= length)
    assert any(through) if stop == "first" else all(through)
    # The last sample is the one that ended it.
    last = part[-1]
    ended = (part == last).sum() == lengths[last]
    assert ended if stop == "first" else ended and (part[:-1] == last).sum() < lengths[last]
    again = mixing.interleave(lengths, weights, stop, seed)
    assert np.array_equal(part, again[0]) and np.array_equal(inside, again[1])


def test_weights_are_how_often_a_part_is_drawn_from():
    part, _ = mixing.interleave(np.array([30_000, 30_000, 30_000]), np.array([6.0, 3.0, 1.0]), "first", 0)
    shares = np.bincount(part) / len(part)
    assert np.allclose(shares, [0.6, 0.3, 0.1], atol=0.01)
    # Mixed everywhere, not one after the other.
    assert np.allclose(np.bincount(part[:3000]) / 3000, [0.6, 0.3, 0.1], atol=0.04)


def test_several_datasets_each_counted(tmp_path):
    (tmp_path / "more.jsonl").write_text('{"text": "b0"}\n{"text": "b1"}\n')
    source, about = apply(
        mixing,
        rows("a", 50),
        mixing_with=[str(tmp_path / "more.jsonl"), rows("c", 5)],
        mixing_weights=[2, 1, 1],
        mixing_stop="all",
    )
    found = Counter(sample["text"][0] for sample in source)
    assert {sample["text"] for sample in source} == {r["text"] for r in [*rows("a", 50), *rows("b", 2), *rows("c", 5)]}
    counts = [line["count"] for line in about.record.lines if line["what"] == "mixed"]
    assert counts == [found["a"], found["b"], found["c"]] and sum(counts) == len(source)
    assert source.place(len(source) - 1) is not None


def test_another_seed_is_another_mixture():
    def texts(seed):
        return [s["text"] for s in apply(mixing, rows("a", 20), mixing_with=[rows("b", 20)], seed=seed)[0]]

    assert texts(0) == texts(0) != texts(1)


def test_what_is_not_for_training_is_everything_once():
    source, _ = apply(mixing, rows("a", 3), "validation", mixing_with=[rows("b", 2)], mixing_weights=[1, 99])
    assert [sample["text"] for sample in source] == ["a0", "a1", "a2", "b0", "b1"]


def test_the_context_opens_the_others():
    asked = []

    def opens(other):
        asked.append(other)
        return open_source(rows("x", 2))

    about = replace(context(mixing, mixing_with=["imdb"]), open=opens)
    source = mixing.apply(open_source(rows("a", 2)), about)
    assert asked == ["imdb"] and {sample["text"][0] for sample in source} == {"a", "x"}


def test_what_happened_in_the_others_is_told():
    other = Stream(rows("b", 3))
    other.record.note("left-out", "a row was broken", count=1)
    source, about = apply(mixing, rows("a", 3), mixing_with=[rows("b", 3)])
    assert len(source) and not [line for line in about.record.lines if line["what"] == "left-out"]
    about = replace(context(mixing, mixing_with=["b"]), open=lambda name: other)
    assert len(mixing.apply(open_source(rows("a", 3)), about))
    assert [line["reason"] for line in about.record.lines if line["what"] == "left-out"] == ["a row was broken"]


def test_faults():
    with pytest.raises(UsageError, match="at least one dataset"):
        apply(mixing, rows("a", 2))
    with pytest.raises(UsageError, match="1 weights for 2 datasets"):
        apply(mixing, rows("a", 2), mixing_with=[rows("b", 1)], mixing_weights=[1])
    with pytest.raises(DataError, match="nothing is in"):
        apply(mixing, Stream([]), mixing_with=[rows("b", 1)])
