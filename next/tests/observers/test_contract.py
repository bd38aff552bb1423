# SPDX-License-Identifier: Apache-2.0
"""What every observer of the registry promises, in numpy and torch."""

import numpy as np
import pytest
import torch

from fewbit import registry
from fewbit.errors import UsageError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import BlockShape, QSchemeType
from fewbit.numerics.grid import BLOCK_FORMATS, QuantizationGrid
from fewbit.numerics.quantize import fake_quantize
from fewbit.observers._base import Observer, RangeObserver, make_observer, observer_class
from fewbit.observers._finite import FiniteGuard
from fewbit.observers._rows import activation_rows, observe_weight, weight_rows

NAMES = registry.names("observers")
RANGES = [name for name in NAMES if issubclass(observer_class(name), RangeObserver)]
EXACT = [name for name in NAMES if name not in ("moving_average", "moments", "hessian")]
GRIDS = {
    "int8": QuantizationGrid(Dtype.int8),
    "uint8": QuantizationGrid(Dtype.uint8, symmetric=False),
    "int4 signed scale": QuantizationGrid(Dtype.int4, full_range=True),
    "uint4 float zero": QuantizationGrid(Dtype.uint4, symmetric=False, float_zero=True),
    "fp8": QuantizationGrid(Dtype.fp8_e4m3),
    **{
        name: QuantizationGrid(
            Dtype.fp4, QSchemeType.per_group, group_size=16, scale_type=BLOCK_FORMATS[name].scale_type
        )
        for name in ("mxfp4", "nvfp4")
    },
    "bfloat16": QuantizationGrid(Dtype.bfloat16),
}
LIBRARIES = {"numpy": lambda x: x, "torch": torch.from_numpy}


def values(rows: int = 3, length: int = 900, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_t(3, (rows, length)) * [[0.1]] + rng.normal(size=(rows, 1)) * 0.1).astype(np.float32)


def observe(name: str, batches) -> Observer:
    observer = make_observer(name)
    for batch in batches:
        observer.update(batch)
    return observer


def plain(state) -> dict[str, np.ndarray]:
    return {name: np.asarray(array) for name, array in state.items()}


def assert_same(a, b, rel=0.0):
    a, b = plain(a), plain(b)
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        np.testing.assert_allclose(a[name], b[name], rtol=rel, err_msg=name)


@pytest.mark.parametrize("name", NAMES)
def test_members_say_what_they_are(name):
    cls = observer_class(name)
    assert cls.name == name and cls.__doc__ and cls().parameters == make_observer(name, cls().parameters).parameters


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", NAMES)
def test_merging_equals_one_pass(name, library):
    batches = [LIBRARIES[library](part) for part in np.array_split(values(), 5, axis=1)]
    once = observe(name, batches)
    first, second = observe(name, batches[:2]), observe(name, batches[2:])
    first.merge(second)
    exact = name in EXACT
    assert_same(first.state(), once.state(), 0.0 if exact else 1e-12)
    empty = make_observer(name)
    empty.merge(once)
    empty.merge(make_observer(name))
    assert_same(empty.state(), once.state())


@pytest.mark.parametrize("name", EXACT)
def test_neither_order_nor_batches_matter(name):
    x = values()
    once = observe(name, [x])
    order = np.random.default_rng(1).permutation(x.shape[1])
    assert_same(observe(name, np.array_split(x[:, order], 13, axis=1)).state(), once.state())
    assert_same(observe(name, [x[:, i : i + 1] for i in order[:50]]).state(), observe(name, [x[:, order[:50]]]).state())


@pytest.mark.parametrize("name", NAMES)
def test_numpy_and_torch_agree(name):
    batches = np.array_split(values(), 3, axis=1)
    in_numpy, in_torch = observe(name, batches), observe(name, [torch.from_numpy(batch) for batch in batches])
    assert_same(in_numpy.state(), in_torch.state(), 0.0 if name in EXACT else 1e-12)
    if name in EXACT:
        for grid in GRIDS.values():
            for a, b in zip(in_numpy.range(grid), in_torch.range(grid)):
                assert isinstance(b, torch.Tensor) and b.dtype == torch.float32
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_memory_does_not_grow(name):
    short, long = observe(name, [values(2, 10)]), observe(name, [values(2, 1000, seed) for seed in range(5)])
    assert {n: a.shape for n, a in short.state().items()} == {n: a.shape for n, a in long.state().items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_state_continues(name):
    batches = np.array_split(values(), 4, axis=1)
    first = observe(name, batches[:2])
    other = make_observer(name)
    state = first.state()
    other.load_state(state)
    for array in state.values():
        array[...] = 0  # the state is a copy
    for batch in batches[2:]:
        other.update(batch)
    assert_same(other.state(), observe(name, batches).state())
    with pytest.raises(UsageError, match="not a state"):
        other.load_state({"other": np.zeros(1)})


@pytest.mark.parametrize("name", NAMES)
def test_wrong_rows_are_errors(name):
    observer = make_observer(name)
    observer.update(np.zeros((3, 0), np.float32))
    assert observer.empty
    with pytest.raises(UsageError, match="seen no values"):
        observer.observed
    with pytest.raises(UsageError, match=r"shape \[4\]"):
        observer.update(np.zeros(4, np.float32))
    observer.update(values(3))
    with pytest.raises(UsageError, match="1 rows after 3"):  # a row would be broadcast
        observer.update(values(1))
    with pytest.raises(UsageError, match="1 rows after 3"):
        observer.merge(observe(name, [values(1)]))
    with pytest.raises(UsageError, match="cannot be merged"):
        observer.merge(make_observer("percentile" if name != "percentile" else "min_max"))


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", RANGES)
def test_ranges_lie_in_what_was_seen(name, grid):
    x = values(4)
    low, high = observe(name, [x]).range(GRIDS[grid])
    assert low.shape == high.shape == (4,) and low.dtype == high.dtype == np.float32
    assert (low <= high).all() and (low >= x.min(1)).all() and (high <= x.max(1)).all()


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("case", ["zeros", "one value", "huge", "tiny", "positive", "negative"])
def test_extreme_rows(name, grid, case):
    x = values(2)
    x = {
        "zeros": x * 0, "one value": np.full((2, 1), 0.3, np.float32), "huge": x / abs(x).max() * np.float32(3e38),
        "tiny": x * np.float32(1e-41), "positive": abs(x), "negative": -abs(x),
    }[case]  # fmt: skip
    observer = observe(name, [x[:, ::2], x] if x.shape[1] > 1 else [x])
    low, high = observer.range(GRIDS[grid])
    assert np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()
    qparams = observer.qparams(GRIDS[grid], BlockShape(x.shape, (1, x.shape[1])))
    assert np.isfinite(fake_quantize(x, qparams)).all()


@pytest.mark.parametrize("name", [name for name in NAMES if observer_class(name).reductions])
def test_reductions_replace_values(name):
    x = values(3).astype(np.float64)
    every = {"min": x.min(1), "max": x.max(1), "sum": x.sum(1), "sum_of_squares": (x * x).sum(1)}
    observer = make_observer(name)
    observer.update_from({key: every[key] for key in observer.reductions}, x.shape[1])
    assert_same(observer.state(), observe(name, [values(3)]).state(), 1e-12)


@pytest.mark.parametrize("x", [np.float32(3), np.zeros((0, 8), np.float32), np.zeros((2, 3, 8), np.float32)])
@pytest.mark.parametrize("scheme", list(QSchemeType))
def test_rows_of_activations(x, scheme):
    grid = QuantizationGrid(Dtype.int8, scheme, group_size=4, block_size=(2, 4))
    rows = activation_rows(np.asarray(x), grid)
    assert rows.ndim == 2 and rows.size == np.size(x)
    if np.ndim(x) == 3:
        expected = {"per_channel": 8, "per_group": 2, "per_block": 2}
        assert len(rows) == expected.get(scheme.name, 1)
        kept = np.arange(48.0).reshape(2, 3, 8)
        assert {len(set((row % 8).astype(int))) for row in activation_rows(kept, grid)} == {8 // len(rows)}


def test_rows_of_images_are_channels():
    x = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 2, 2)
    grid = QuantizationGrid(Dtype.int8, QSchemeType.per_channel)
    rows = activation_rows(x, grid, features=1)
    for channel, row in enumerate(rows):
        assert sorted(row) == sorted(x[:, channel].ravel())
    assert torch.equal(activation_rows(torch.from_numpy(x), grid, features=1), torch.from_numpy(rows))


def test_short_groups_repeat_their_own_values():
    """Zeros would pull percentiles to zero."""
    x = np.array([[1.0, 2, 3, 4, 5]], np.float32)
    grid = QuantizationGrid(Dtype.int8, QSchemeType.per_group, group_size=3)
    assert activation_rows(x, grid).tolist() == [[1, 2, 3], [4, 5, 4]]
    assert weight_rows(x, grid).tolist() == [[1, 2, 3], [4, 5, 4]]


@pytest.mark.parametrize("grid", ["int8", "nvfp4", "uint8"])
@pytest.mark.parametrize("name", RANGES)
def test_scales_of_a_weight(name, grid, monkeypatch):
    """Some blocks at a time give what all at once give; the global scale belongs to the complete tensor."""
    weight = values(8, 64)
    grid = GRIDS[grid].replace(granularity=QSchemeType.per_group, group_size=16)
    once = observe_weight(weight, grid, name)
    monkeypatch.setattr("fewbit.observers._rows._ELEMENTS", 1 << 13)
    parts = observe_weight(torch.from_numpy(weight), grid, name)
    np.testing.assert_array_equal(once.scale, parts.scale)
    assert once.scale.shape == (8, 4) and (once.global_scale is None) == (not grid.two_level)


@pytest.mark.parametrize("library", LIBRARIES)
def test_values_that_are_not_finite_are_counted_and_left_out(library):
    guard, make = FiniteGuard(), LIBRARIES[library]
    x = np.array([1.0, np.nan, np.inf, -np.inf, np.inf], np.float32)
    clean = make(np.ones(3, np.float32))
    assert guard.filter(clean, 0) is clean and guard.result() is None
    assert guard.filter(make(x), 4).tolist() == [1, 0, 0, 0, 0]
    guard.filter(make(x), 5)
    found = guard.result()
    assert (found.sample, found.nan, found.positive, found.negative) == (4, 2, 4, 2)
    assert str(found) == "2 NaN and 4 +inf and 2 -inf"
    integers = make(np.arange(3))
    assert guard.filter(integers, 0) is integers


def test_reductions_that_are_not_finite():
    guard = FiniteGuard()
    fine = {"sum": np.ones(2), "sum_of_squares": np.array([1, np.inf])}  # a square may overflow alone
    assert guard.check_reductions(fine, 0) and guard.result() is None
    assert not guard.check_reductions({"min": np.array([0.0, -np.inf])}, 3)
    assert guard.result().reduced and str(guard.result()) == "-inf" and guard.result().sample == 3


def test_public_names_and_parameters():
    import fewbit
    from fewbit import QuantizationSpec

    for name in (
        "PerTensorMinMax", "PerChannelMinMax", "PerGroupMinMax",
        "PerTensorHistogram", "PerTensorPercentile", "PerTensorMSE",
    ):  # fmt: skip
        cls = getattr(fewbit, f"{name}Observer")
        spec = QuantizationSpec("int8", observer_cls=cls, group_size=32 if "Group" in name else None)
        assert spec.observer == cls.name and issubclass(cls, observer_class(spec.observer))
        assert spec.qscheme is cls.granularity or "Group" in name
        assert make_observer(cls).name == cls.name
    for name, parameters in (
        ("percentile", {"percentile": 0}), ("percentile", {"percentile": True}), ("mse", {"candidates": 3}),
        ("histogram", {"mass": 1}), ("entropy", {"bins": 2}), ("entropy", {"bins": 64.0}),
        ("moving_average", {"averaging_constant": 0}), ("min_max", {"bins": 3}), ("percentile", {"percentil": 9}),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=next(iter(parameters))):
            make_observer(name, parameters)
    with pytest.raises(UsageError, match="no observer"):
        make_observer("min_maxx")
    with pytest.raises(UsageError, match="not an observer"):
        observer_class(int)


def test_observers_from_a_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from fewbit.observers.min_max import MinMaxObserver\n"
        "class Half(MinMaxObserver):\n"
        "    name = 'half'\n"
        "    def range(self, grid, global_scale=None):\n"
        "        low, high = super().range(grid, global_scale)\n"
        "        return low / 2, high / 2\n"
    )
    observer = make_observer(f"{file}:Half")
    observer.update(np.array([[-2.0, 4.0]], np.float32))
    assert [float(end[0]) for end in observer.range(GRIDS["int8"])] == [-1.0, 2.0]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", NAMES)
def test_cuda_equals_cpu(name):
    batches = np.array_split(values(), 3, axis=1)
    on_gpu = observe(name, [torch.from_numpy(batch).cuda() for batch in batches]).state()
    on_cpu = observe(name, batches).state()
    assert_same({k: v.cpu() for k, v in on_gpu.items()}, on_cpu, 0.0 if name in EXACT else 1e-12)


@pytest.mark.parametrize("name", ["missing.py:Mine", "mine.py:Missing", "mine.py:number", "json:loads"])
def test_an_observer_that_is_not_there_names_no_option(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("number = 3\n")
    with pytest.raises(UsageError) as error:
        observer_class(name)
    assert error.value.param is None and "observer_cls=" not in str(error.value)
