# SPDX-License-Identifier: Apache-2.0
"""Every observer the registry lists keeps the promises of `observers/_base.py`, for every type and granularity."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fewbit import registry
from fewbit.errors import UsageError
from fewbit.model.watch import NEEDS, VALUES, reductions
from fewbit.numerics.blocks import Blocks, QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import from_range
from fewbit.numerics.quantize import fake_quantize
from fewbit.observers._base import RangeObserver, observer_class, range_observers
from fewbit.observers._layout import activation_rows

NAMES = registry.names("observers")
RANGES = [name for name in NAMES if issubclass(observer_class(name), RangeObserver)]
DTYPES = [dtype for dtype in Dtype if dtype is not Dtype.int32]  # int32 holds biases, whose scale follows from others
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
PLAIN = {torch.int32, torch.int64, torch.float32, torch.float64}


def grid_of(granularity: QSchemeType, dtype: Dtype = Dtype.int8, **fields: object) -> Grid:
    return Grid(dtype, granularity, group_size=8, block_size=(8, 8), **fields)


def activation(positions: int = 30, features: int = 20, seed: int = 0) -> torch.Tensor:
    """Skewed, of different sizes by feature, with exact zeros and one outlier."""
    make = torch.Generator().manual_seed(seed)
    x = torch.randn(positions, features, generator=make) * torch.logspace(-2, 2, features) + 0.1
    x[::7, ::3] = 0.0
    x[positions // 2, features // 2] = 300.0
    return x


def weight_rows(x: torch.Tensor, block: tuple[int, ...]) -> torch.Tensor:
    """One row a block; one that is cut short repeats its own values."""
    rows = []
    for index in np.ndindex(*Blocks(tuple(x.shape), block).counts):
        own = x[tuple(slice(i * width, (i + 1) * width) for i, width in zip(index, block))].flatten()
        rows.append(own.repeat(int(np.prod(block)))[: int(np.prod(block))])
    return torch.stack(rows)


def observed(name: str, parts: list[torch.Tensor], **parameters: object) -> object:
    observer = observer_class(name)(**parameters)
    for part in parts:
        observer.observe(part)
    return observer


def assert_same_state(found: dict, wanted: dict) -> None:
    """Equal bit by bit; sums and averages in float64 to 12 digits."""
    assert found.keys() == wanted.keys()
    for key in wanted:
        if wanted[key].dtype is torch.float64:
            torch.testing.assert_close(found[key], wanted[key], rtol=1e-12, atol=1e-300)
        else:
            assert torch.equal(found[key], wanted[key]), key


def test_the_registry_lists_the_observers():
    assert {"min_max", "moving_average", "histogram", "percentile", "mse", "entropy", "moments"} <= set(NAMES)
    assert set(RANGES) == set(NAMES) - {"moments", "gram"} and range_observers() == RANGES


@pytest.mark.parametrize("granularity", QSchemeType)
@pytest.mark.parametrize("name", [name for name in NAMES if VALUES not in observer_class(name).needs])
def test_what_is_known_of_the_values_is_as_good_as_the_values(name, granularity):
    grid, told, shown = grid_of(granularity), observer_class(name)(), observer_class(name)()
    for x in (activation(1), activation(29, seed=1), activation(7, seed=2).half()):
        known = reductions(x, told.needs)
        told.absorb({need: activation_rows(t[None], grid) if t.ndim else t for need, t in known.items()})
        shown.observe(activation_rows(x, grid))
    assert_same_state(told.state(), shown.state())
    with pytest.raises(UsageError, match="rows"):
        told.absorb({need: torch.ones(99, 1) if t.ndim else t for need, t in known.items()})


@pytest.mark.parametrize("name", NAMES)
def test_whoever_measures_in_another_way_is_shown_the_values(name):
    own = observer_class(name)
    heir = type("Heir", (own,), {"measure": lambda self, rows: own.measure(self, rows.clamp(max=1))})
    assert heir.needs == {VALUES} and type("Plain", (own,), {}).needs == own.needs <= set(NEEDS)


@pytest.mark.parametrize("granularity", QSchemeType)
@pytest.mark.parametrize("name", NAMES)
class TestStatistics:
    def parts(self, granularity: QSchemeType) -> list[torch.Tensor]:
        x = activation()
        pieces = (x[:1], x[1:13], x[:0], x[13:])  # one position, none at all, the outlier late
        return [activation_rows(piece, grid_of(granularity)) for piece in pieces]

    def test_merging_parts_equals_one_pass(self, name, granularity):
        parts = self.parts(granularity)
        wanted = observed(name, parts).state()
        left, middle, _, right = (observed(name, [part]) for part in parts)
        empty = observer_class(name)()
        empty.merge(left)
        empty.merge(observer_class(name)())
        empty.merge(middle)
        empty.merge(right)
        assert_same_state(empty.state(), wanted)
        middle.merge(right)  # grouped the other way
        left.merge(middle)
        assert_same_state(left.state(), wanted)

    def test_the_order_matters_only_to_averages_that_forget(self, name, granularity):
        parts = self.parts(granularity)
        forth, back = observed(name, parts).state(), observed(name, parts[::-1]).state()
        whole = observed(name, [torch.cat(parts, 1).flip(1)]).state()
        if name == "moving_average":
            with pytest.raises(AssertionError):
                assert_same_state(back, forth)
        else:
            assert_same_state(back, forth)
            assert_same_state(whole, forth)

    def test_a_state_comes_back_from_plain_bytes_and_goes_on(self, name, granularity):
        first, second, _, third = self.parts(granularity)
        begun = observed(name, [first, second])
        state = begun.state()
        assert set(state) == set(begun.keeps)
        assert {tensor.dtype for tensor in state.values()} <= PLAIN
        stored = {key: (tensor.numpy().tobytes(), tensor.dtype, tensor.shape) for key, tensor in state.items()}
        again = observer_class(name)()
        again.load_state(
            {
                key: torch.frombuffer(bytearray(raw), dtype=kind).view(shape)
                for key, (raw, kind, shape) in stored.items()
            }
        )
        again.observe(third)
        begun.observe(third)
        assert_same_state(again.state(), begun.state())

    def test_memory_does_not_grow_with_the_data(self, name, granularity):
        first, *_, last = self.parts(granularity)
        once, often = observed(name, [first]).state(), observed(name, [first, *[last] * 20]).state()
        assert {k: v.shape for k, v in once.items()} == {k: v.shape for k, v in often.items()}

    @pytest.mark.parametrize("device", DEVICES)
    def test_statistics_live_where_the_data_lives(self, name, granularity, device):
        parts = [part.to(device) for part in self.parts(granularity)]
        before = [part.clone() for part in parts]
        observer = observed(name, parts)
        assert {tensor.device.type for tensor in observer.state().values()} == {device}
        assert all(torch.equal(*pair) for pair in zip(parts, before))  # and the data stays as it was
        if isinstance(observer, RangeObserver):
            assert {end.device.type for end in observer.range(grid_of(granularity))} == {device}

    def test_nobody_can_reach_in(self, name, granularity):
        parts = self.parts(granularity)
        observer, other = observed(name, parts[:2]), observer_class(name)()
        state = observer.state()
        wanted = {key: tensor.clone() for key, tensor in state.items()}
        other.merge(observer)
        other.observe(parts[1])  # within the range, so that counts could be added in place
        third = observer_class(name)()
        third.load_state(state)
        third.observe(parts[1])
        assert_same_state(observer.state(), wanted)
        assert_same_state(state, wanted)
        for tensor in state.values():
            tensor.fill_(7)
        assert_same_state(observer.state(), wanted)


@pytest.mark.parametrize("name", NAMES)
class TestMisuse:
    def test_a_parameter_of_another_type(self, name):
        """Refused when the observer is made, not when the data was read."""
        for parameter, default in observer_class(name)().parameters.items():
            whole = isinstance(default, int)
            for value in (str(default), True, None, [default], *((default + 0.5,) if whole else ())):
                with pytest.raises(UsageError, match=f"{parameter}=") as error:
                    observer_class(name)(**{parameter: value})
                assert error.value.where == parameter and str(default) in error.value.expected
            fine = np.int64(default) if whole else np.float64(default)
            assert observer_class(name)(**{parameter: fine}).parameters[parameter] == default

    def test_nothing_seen(self, name):
        observer = observer_class(name)()
        observer.observe(torch.empty(4, 0))
        assert observer.empty and observer.state() == {}
        with pytest.raises(UsageError, match="has seen nothing"):
            observer.range(Grid(Dtype.int8)) if name in RANGES else observer.mean_square

    def test_not_rows(self, name):
        with pytest.raises(UsageError, match=r"of shape \[3\]"):
            observer_class(name)().observe(torch.ones(3))
        with pytest.raises(UsageError, match="int64"):
            observer_class(name)().observe(torch.ones(3, 3, dtype=torch.int64))

    def test_another_number_of_rows(self, name):
        observer, other = observed(name, [torch.ones(3, 2)]), observed(name, [torch.ones(1, 2)])
        with pytest.raises(UsageError, match="1 rows after 3"):
            observer.observe(torch.ones(1, 2))
        with pytest.raises(UsageError, match="1 rows after 3"):
            observer.merge(other)

    def test_somebody_elses_state(self, name):
        with pytest.raises(UsageError, match="not a state"):
            observer_class(name)().load_state({"weights": torch.ones(1)})

    def test_merging_another_kind(self, name):
        other = "min_max" if name != "min_max" else "mse"
        with pytest.raises(UsageError, match="cannot take in"):
            observer_class(name)().merge(observer_class(other)())


def test_parameters_of_somebodys_own_observer():
    """Only what has a plain default can be held against it."""

    @dataclass(kw_only=True, eq=False)
    class Own(observer_class("min_max")):
        name = "own"
        share: float = 0.5
        limit: float | None = None
        quick: bool = False

    assert Own(share=1, limit=3, quick=True).parameters == {"share": 1, "limit": 3, "quick": True}
    assert Own(limit=True).limit is True
    for wrong in ({"share": "1"}, {"quick": 1}, {"share": False}):
        with pytest.raises(UsageError, match="observer 'own'"):
            Own(**wrong)


def test_merging_other_parameters():
    with pytest.raises(UsageError, match="bins=64"):
        observer_class("mse")(bins=64).merge(observer_class("mse")(bins=128))


@pytest.mark.parametrize("granularity", QSchemeType)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", RANGES)
def test_ranges_make_usable_scales(name, dtype, granularity):
    x = activation(12, 10)
    small = {"bins": 128, "candidates": 9}  # for speed
    few = {key: value for key, value in small.items() if key in observer_class(name)().parameters}
    for symmetric in (True, False) if dtype.is_integer else (True,):
        grid = grid_of(granularity, dtype, symmetric=symmetric)
        if symmetric:
            rows, block = activation_rows(x, grid), grid.activation_block((12, 10), dynamic=False)
        else:
            block = grid.weight_block((12, 10))
            rows = weight_rows(x, block)
        low, high = observed(name, [rows], **few).range(grid)
        assert low.dtype == high.dtype == torch.float32 and low.shape == high.shape == (len(rows),)
        assert bool((low <= high).all())
        assert bool((low >= rows.amin(1).clamp(max=0)).all()) and bool((high <= rows.amax(1).clamp(min=0)).all())
        counts = Blocks((12, 10), block).counts
        qparams = from_range(low.view(counts), high.view(counts), grid, block)
        assert bool((qparams.scale > 0).all() and qparams.scale.isfinite().all())
        worst = (fake_quantize(x, qparams) - x).abs().amax()
        assert worst <= x.abs().amax() * 1.0001  # what setting everything to zero would do


numbers = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**126), max_value=2.0**126)
odd = numbers | st.sampled_from([0.0, -0.0, 1e-38, -1e-38, 2.0**-149, 1e38, -1e38, 1.0, -1.0, 0.5, 2.0**-126])
odd_rows = arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=12), elements=odd)


@pytest.mark.parametrize("name", RANGES)
@settings(max_examples=40)
@given(data=odd_rows, cut=st.integers(0, 12), symmetric=st.booleans(), dtype=st.sampled_from(DTYPES))
def test_odd_data(name, data, cut, symmetric, dtype):
    rows = torch.from_numpy(data.copy())
    grid = Grid(dtype, symmetric=symmetric)
    observer, after = observed(name, [rows[:, :cut]]), observed(name, [rows[:, cut:]])
    wanted = observed(name, [rows[:, :cut], rows[:, cut:]])
    observer.merge(after)
    assert_same_state(observer.state(), wanted.state())
    low, high = observer.range(grid)
    assert bool((low <= high).all())
    assert bool((low >= rows.amin(1).clamp(max=0)).all()) and bool((high <= rows.amax(1).clamp(min=0)).all())
    scale = from_range(low, high, grid, (1,)).scale
    assert bool((scale > 0).all() and scale.isfinite().all())


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 3.7, -3.7, 1e-38, -1e38])
@pytest.mark.parametrize("name", RANGES)
def test_one_value_is_kept_whole(name, value):
    """Constant rows and single elements: all there is to say of the range is the value."""
    rows = torch.tensor([[value], [value]])
    for symmetric in (True, False):
        low, high = observed(name, [rows]).range(Grid(Dtype.int16, symmetric=symmetric))
        largest = torch.maximum(-low, high)
        torch.testing.assert_close(largest, rows[:, 0].abs(), rtol=2e-3, atol=0)
