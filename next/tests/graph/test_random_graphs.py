# SPDX-License-Identifier: Apache-2.0
"""Analysis of random graphs: whatever it finds is right."""

import numpy as np
import pytest

from fewbit.errors import UsageError
from fewbit.graph.check import relative_difference
from fewbit.graph.pruning import PruneAnalysis
from fewbit.graph.scaling import scale_edits, scale_families
from neutral_graphs import apply, run, zeroed_columns
from random_graphs import RandomGraph


def check_scaling(graph, sample, random):
    families = scale_families(graph)
    edits = [edit for f in families for edit in scale_edits(f, np.exp(random.uniform(-1, 1, f.size)))]
    assert relative_difference(run(apply(graph, edits), sample), run(graph, sample)) < 1e-7
    return len(families)


def check_pruning(graph, sample, random):
    analysis = PruneAnalysis(graph)
    chosen = {n: random.permutation(f.size)[: f.size // 2] for n, f in enumerate(analysis.families) if not f.inexact}
    try:
        edit = analysis.removal(chosen)
    except UsageError:  # several families of one layer may be all it has
        return 0
    uses = [(use, chosen[n]) for n, f in enumerate(analysis.families) if n in chosen for use in f.of_role("in")]
    zeroed = zeroed_columns(graph, [(use.constant, np.isin(use.index, gone), use.view) for use, gone in uses])
    assert relative_difference(run(apply(graph, [edit]), sample), run(zeroed, sample)) < 1e-7
    return len(analysis.families)


def check(seeds, steps):
    counts = np.zeros(2, int)
    for seed in seeds:
        built = RandomGraph(seed, steps)
        graph, sample, random = built.graph(), built.maker.sample(), np.random.default_rng(seed)
        counts += [check_scaling(graph, sample, random), check_pruning(graph, sample, random)]
    return counts


def test_everything_found_in_random_graphs_holds():
    scaled, pruned = check(range(120), 14)
    assert scaled > 200 and pruned > 300, "the graphs have too little in them"


@pytest.mark.slow
def test_everything_found_in_larger_random_graphs_holds():
    scaled, pruned = check(range(10_000, 11_000), 30)
    assert scaled > 4000 and pruned > 6000
