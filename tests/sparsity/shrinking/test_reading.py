# SPDX-License-Identifier: Apache-2.0
"""Costs and refits of a weight against least squares on the data itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fewbit.errors import DataError
from fewbit.sparsity.shrinking import reading
from fewbit.sparsity.shrinking.moments import Moments
from fewbit.sparsity.shrinking.reading import Reader


@pytest.fixture(autouse=True)
def undamped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_DAMPING", 0.0)


def _data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    x = torch.randn(200, 6, generator=generator, dtype=torch.float64) @ mixing + 1.5
    return x, torch.randn(6, 3, generator=generator, dtype=torch.float64)


def _reader(x: Tensor, weight: Tensor, classes: list[int], *, has_bias: bool) -> Reader:
    moments = Moments.empty(6)
    moments.take({"values": x}, 0)
    return Reader.of(weight, torch.tensor(classes), moments, has_bias=has_bias)


def _best(x: Tensor, y: Tensor, columns: list[int], *, has_bias: bool) -> tuple[Tensor, float]:
    given = x[:, columns]
    if has_bias:
        given = torch.cat([given, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    found = torch.linalg.lstsq(given, y).solution
    return found, float((given @ found - y).square().sum() / len(x))


@pytest.mark.parametrize("has_bias", [False, True])
def test_the_weight_that_is_left_is_the_least_squares_one(has_bias: bool) -> None:
    x, weight = _data()
    reader = _reader(x, weight, [1, 2, 3, 4, 5, 6], has_bias=has_bias)
    reader.take([2, 5])
    new, shift = reader.refitted()
    best, _ = _best(x, x @ weight, [0, 2, 3, 5], has_bias=has_bias)
    torch.testing.assert_close(new[[0, 2, 3, 5]], best[:4])
    assert not new[[1, 4]].any()
    assert (shift is None) is not has_bias
    if shift is not None:
        torch.testing.assert_close(shift, best[4])


@pytest.mark.parametrize("classes", [[1, 2, 3, 4, 5, 6], [1, 1, 2, 2, 3, 3]])
@pytest.mark.parametrize("has_bias", [False, True])
def test_costs_are_the_errors_that_least_squares_leaves(classes: list[int], has_bias: bool) -> None:
    x, weight = _data()
    reader = _reader(x, weight, classes, has_bias=has_bias)
    reader.take([3])
    left = [place for place, each in enumerate(classes) if each != 3]
    _, before = _best(x, x @ weight, left, has_bias=has_bias)
    candidates = sorted(set(classes) - {3})
    for one, cost in zip(candidates, reader.costs(candidates).tolist(), strict=True):
        columns = [place for place in left if classes[place] != one]
        _, after = _best(x, x @ weight, columns, has_bias=has_bias)
        assert cost == pytest.approx(after - before, rel=1e-6)


def test_the_taps_of_a_kernel_are_made_up_for_one_by_one() -> None:
    x, weight = _data()
    reader = _reader(x, torch.stack([weight, 2 * weight], 2), [1, 2, 3, 4, 5, 6], has_bias=False)
    reader.take([1])
    new, _ = reader.refitted()
    torch.testing.assert_close(new[..., 1], 2 * new[..., 0])


def test_moments_of_too_few_samples_are_damped_until_they_have_an_inverse() -> None:
    x, weight = _data()
    reader = _reader(x[:2] * 1e6, weight, [1, 2, 3, 4, 5, 6], has_bias=True)
    reader.take([1, 2])
    assert bool(torch.isfinite(reader.refitted()[0]).all()) and bool((reader.costs([3, 4, 5, 6]) >= 0).all())
    with pytest.raises(DataError, match="not finite"):
        _reader(x * float("nan"), weight, [1, 2, 3, 4, 5, 6], has_bias=True)
