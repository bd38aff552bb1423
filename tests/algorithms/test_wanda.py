# SPDX-License-Identifier: Apache-2.0
"""Wanda and magnitude: the scores of the papers, rows, kernels, stacks."""

import importlib
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorithms.pruning import FLOAT, problem
from fewbit.algorithms import magnitude, wanda
from fewbit.algorithms._base import Problem
from fewbit.numerics.sparsity import Pattern, count


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_the_smallest_products_of_each_output_are_zero():
    """The paper's formula, row by row with Python's sort: |w| times the norm of the input."""
    x, weight = drawn(50, 10, seed=1) * torch.linspace(0.1, 3, 10), drawn(4, 10)
    case = Problem(weight, FLOAT, (4, 10), x.square().mean(0)[None], pattern=Pattern(0.5))
    found = wanda.solve(case)
    norms = x.norm(dim=0)
    for row, pruned in zip(weight, found.qtensor.dequantize()):
        order = sorted(range(10), key=lambda at: float(row[at].abs() * norms[at]))
        assert sorted(order[:5]) == (pruned == 0).nonzero()[:, 0].tolist()
        assert torch.equal(pruned[pruned != 0], row[pruned != 0])  # the others are as they were
    assert found.facts["won"] == {"magnitude": 0.0, "wanda": 1.0}


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 20))
def test_zeros_are_dealt_to_rows_evenly_and_are_as_many_as_the_weight_shall_have(rows, width, twentieths):
    pattern = Pattern(twentieths / 20)
    h = torch.rand(1, width, generator=torch.Generator().manual_seed(twentieths)) + 0.1
    mask = wanda.solve(Problem(drawn(rows, width), FLOAT, (rows, width), h, h, pattern=pattern))
    zeros = (mask.qtensor.dequantize() == 0).sum(1)
    assert int(zeros.sum()) == count(pattern.share, rows * width)
    if mask.facts["won"]["wanda"]:
        assert int(zeros.max() - zeros.min()) <= 1


def test_rows_can_be_compared_with_one_another_too():
    weight = torch.cat([drawn(3, 8), 9 + drawn(3, 8, seed=1)])
    case = Problem(weight, FLOAT, (6, 8), torch.ones(1, 8), pattern=Pattern(0.5))
    assert (wanda.solve(case, by_row=False).qtensor.dequantize() == 0).sum(1).tolist() == [8, 8, 8, 0, 0, 0]


def test_a_kernel_is_pruned_by_the_channels_it_reads():
    """Defect (m): the importance of a channel counts for all of its kernel, also where groups read other channels."""
    weight = torch.ones(4, 2, 3, 3)
    loud = torch.tensor([[1.0, 9.0], [1.0, 9.0], [9.0, 1.0], [9.0, 1.0]]).reshape(4, 2, 1, 1)  # two groups
    case = Problem(weight, FLOAT, (4, 2, 3, 3), loud, loud, pattern=Pattern(0.5, by_row=True))
    found = wanda.solve(case).qtensor.dequantize()
    assert torch.equal(found, (loud > 5).float().expand_as(weight))


def test_a_choice_by_samples_that_lie_is_taken_back():
    """What was kept aside says the opposite of what was seen: the smallest are the better choice, row by row."""
    weight = torch.tensor([[1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]])
    seen, aside = torch.tensor([[99.0, 99.0, 1.0, 1.0]]), torch.ones(1, 4)
    case = Problem(weight, FLOAT, (2, 4), seen, aside, pattern=Pattern(0.5, by_row=True))
    found = wanda.solve(case)
    assert torch.equal(found.qtensor.dequantize(), magnitude.solve(case).qtensor.dequantize())
    assert found.facts["won"] == {"magnitude": 1.0, "wanda": 0.0}  # in the second row both are the same


def test_equal_weights_are_no_reason_to_prune_all():
    """Defects (g) and (n): weights that are all alike, and a share of all of them."""
    for share, left in ((0.5, 8), (1.0, 0), (0.0, 16)):
        case = Problem(torch.ones(2, 8), FLOAT, (2, 8), pattern=Pattern(share))
        assert int(magnitude.solve(case).qtensor.dequantize().sum()) == left


def test_tiny_weights_are_told_apart():
    """Blocks are compared by squares, which float32 cannot hold of such numbers as they are."""
    weight = torch.tensor([[1e-30, 1e-30, 3e-30, 3e-30]])
    case = Problem(weight, FLOAT, (1, 4), pattern=Pattern.read("1x2", 0.5))
    assert torch.equal(magnitude.solve(case).qtensor.dequantize() != 0, weight > 2e-30)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_floats_keep_their_values(dtype):
    case = problem(Pattern(0.5))
    case = replace(case, weight=case.weight.to(dtype))
    found = wanda.solve(case).qtensor.dequantize()
    assert torch.equal(found[found != 0], case.weight.float()[found != 0])


@pytest.mark.parametrize("name", ["alps", "magnitude", "sparse_gpt", "stepwise", "wanda"])
def test_importing_an_algorithm_sets_nothing_for_others(name):
    """Defect (m): how precise everybody's products are was changed by an import."""
    before = (
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
    )
    importlib.reload(importlib.import_module(f"fewbit.algorithms.{name}"))
    after = torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    assert before == after
