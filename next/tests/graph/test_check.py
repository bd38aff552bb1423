# SPDX-License-Identifier: Apache-2.0
"""Families are checked by running the model, and wrong ones are found."""

from dataclasses import replace

import numpy as np

from fewbit.graph.check import check_families, relative_difference
from fewbit.graph.edits import ScaleChannels
from fewbit.graph.scaling import scale_families
from neutral_graphs import Maker, apply, run


def chain(count):
    maker = Maker(x=(2, 8))
    x = "x"
    for number in range(count):
        x = maker.node("relu", maker.linear(f"l{number}", x, 8))
    graph = maker.graph(x)
    sample = maker.sample()
    calls = []

    def trial(edits):
        calls.append(len(edits))
        return run(apply(graph, edits), sample)

    return scale_families(graph), trial, calls


def test_two_runs_if_all_is_well():
    families, trial, calls = chain(9)
    assert check_families(families, trial) == (families, ())
    assert len(calls) == 2 and len(families) == 8
    assert check_families((), trial) == ((), ())


def test_wrong_families_are_found_by_halving():
    families, trial, calls = chain(9)
    broken = list(families)
    for number in (2, 7):
        producer, *rest = families[number].uses
        broken[number] = replace(families[number], uses=(replace(producer, index=producer.index[::-1]), *rest))
    accepted, rejected = check_families(broken, trial)
    assert list(accepted) == [family for n, family in enumerate(broken) if n not in (2, 7)]
    assert [entry.family for entry in rejected] == [broken[2], broken[7]]
    assert all(entry.difference > 1e-3 for entry in rejected) and len(calls) <= 16


def test_factors_are_powers_of_two():
    families, trial, _ = chain(3)
    seen = []
    check_families(families, lambda edits: (seen.extend(edits), trial(edits))[1])
    exponents = np.concatenate([np.log2(edit.factors).ravel() for edit in seen])
    assert (exponents == exponents.round()).all() and len(set(exponents)) > 4


def test_differences():
    reference = [np.array([1.0, -np.inf, np.nan]), np.array([1, 2])]
    assert relative_difference(reference, reference) == 0
    assert relative_difference([np.array([1.0, np.inf, np.nan]), reference[1]], reference) == np.inf
    assert relative_difference([reference[0], np.array([1, 3])], reference) == 0.5
    assert relative_difference([np.zeros(2), reference[1]], reference) == np.inf
    assert relative_difference([np.array([np.nan])], [np.array([2.0])]) == np.inf


def test_scaled_constants_keep_dtype_and_shape():
    edit = ScaleChannels("w", np.array([[2.0], [0.5]]).reshape(2, 1), (2, 3))
    scaled = edit.scaled(np.arange(6, dtype=np.float16).reshape(3, 2))
    assert scaled.dtype == np.float16 and scaled.tolist() == [[0, 2], [4, 1.5], [2, 2.5]]
