# SPDX-License-Identifier: Apache-2.0
"""Values that go together share their codes: what one reads as a number, the others read as what follows from it."""

from math import inf

import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.backends.graph.grids import CodeScale, Kin, code_scales, families
from fewbit.backends.graph.units import Unit

STEPS = st.sampled_from([1 / 6, 0.25, 0.5, 1.0, 2.0, 3.0, 10.0])
SHIFTS = st.sampled_from([-3.0, -1.0, -0.3, 0.0, 0.1, 1.0, 3.0])
ENDS = st.tuples(st.floats(-20, 0), st.floats(0, 20)).filter(lambda ends: ends[1] - ends[0] > 1e-3)


def unit(kind, reads, out, factor=1.0, offset=0.0):
    made = ir.node("Op", reads, outputs=[out])
    return Unit(kind, (made,), tuple(reads), factor=factor, offset=offset)


@st.composite
def graphs(draw):
    """Values that are computed, moved, scaled and put together at random; the range of each follows from its makers."""
    values, ranges, made = [], {}, []
    for index in range(draw(st.integers(1, 3))):
        values.append(ir.Value(name=f"root{index}"))
        ranges[f"root{index}"] = draw(ENDS)
    for index in range(draw(st.integers(1, 6))):
        out = ir.Value(name=f"v{index}")
        kind = draw(st.sampled_from(["pass", "affine", "concat"]))
        count = draw(st.integers(1, min(3, len(values)))) if kind == "concat" else 1
        reads = draw(st.lists(st.sampled_from(values), min_size=count, max_size=count, unique=True))
        factor, offset = (draw(STEPS), draw(SHIFTS)) if kind == "affine" else (1.0, 0.0)
        ends = [ranges[value.name] for value in reads]
        ranges[out.name] = (
            min(low for low, _ in ends) * factor + offset, max(high for _, high in ends) * factor + offset,
        )  # fmt: skip
        made.append(unit(kind, reads, out, factor, offset))
        values.append(out)
    return draw(st.permutations(made)), ranges


def near(a, b, by):
    return abs(a - b) <= by * (1 + 1e-6)


@given(graphs())
def test_codes_of_one_are_codes_of_the_other(made):
    parts, ranges = made
    kin = families(parts)
    scales = code_scales(kin, ranges)
    for it in parts:
        if it.kind == "concat":
            continue  # it may read each part in its own way
        before, after = scales[it.reads[0].name], scales[it.out.name]
        for code in (0, 17, 255):
            number = before.scale * (code - before.zero)
            follows = after.scale * (code - after.zero)
            # The offset is rounded to whole steps, at both ends of the family's way to the two.
            assert near(follows, number * it.factor + it.offset, after.scale)


@given(graphs())
def test_every_member_follows_from_the_head(made):
    parts, ranges = made
    kin = families(parts)
    scales = code_scales(kin, ranges)
    for name, it in kin.items():
        head, own = scales[it.head], scales[name]
        assert own.scale == pytest.approx(head.scale * it.factor)
        for code in (0, 100, 255):
            wanted = it.factor * head.scale * (code - head.zero) + it.offset
            assert near(own.scale * (code - own.zero), wanted, own.scale / 2)  # the offset, in whole steps


@given(graphs())
def test_zero_is_exact_and_the_range_covered(made):
    parts, ranges = made
    kin = families(parts)
    for name, own in code_scales(kin, ranges).items():
        low, high = own.range
        assert 0 <= own.zero <= 255 and isinstance(own.zero, int)
        spare = own.scale * (0.5 if kin[name].offset == 0 else 1.0)  # both zero points are rounded
        assert low <= ranges[name][0] + spare * (1 + 1e-6) and high >= ranges[name][1] - spare * (1 + 1e-6)


@given(ENDS)
def test_a_value_by_itself_has_255_steps_and_half_a_step_to_spare(ends):
    found = code_scales({"a": Kin("a")}, {"a": ends})["a"]
    assert found.scale == pytest.approx((ends[1] - ends[0]) / 255)
    assert near(found.range[0], ends[0], found.scale / 2) and near(found.range[1], ends[1], found.scale / 2)


def test_a_range_beside_zero_reaches_it():
    assert code_scales({"a": Kin("a")}, {"a": (2.0, 5.1)})["a"] == CodeScale(5.1 / 255, 0)
    assert code_scales({"a": Kin("a")}, {"a": (-5.1, -2.0)})["a"] == CodeScale(5.1 / 255, 255)


def test_an_offset_is_a_whole_number_of_steps():
    x, y = ir.Value(name="x"), ir.Value(name="y")
    scales = code_scales(families([unit("affine", [x], y, 1.0, 3.0)]), {"x": (-4.0, 6.0), "y": (-1.0, 9.0)})
    steps = 3.0 / scales["x"].scale
    assert steps == pytest.approx(round(steps)) and scales["x"].zero - scales["y"].zero == round(steps)


def test_what_follows_is_said_before_what_is_put_together():
    """Whichever comes first in the set of units: twice x is not x because both are parts of one."""
    x, y, both = (ir.Value(name=name) for name in ("x", "y", "both"))
    parts = [unit("affine", [x], y, 2.0), unit("concat", [x, y], both)]
    for order in (parts, parts[::-1]):
        scales = code_scales(families(order), {"x": (0.0, 1.0), "y": (0.0, 2.0), "both": (0.0, 2.0)})
        assert scales["y"] == CodeScale(2 * scales["x"].scale, scales["x"].zero)
        assert scales["both"].range[1] >= 2.0 - scales["both"].scale


def test_parts_of_a_concatenation_share_one_scale():
    a, b, both, other = (ir.Value(name=name) for name in ("a", "b", "both", "other"))
    scales = code_scales(
        families([unit("concat", [a, b], both), unit("pass", [both], other)]),
        {"a": (-1.0, 1.0), "b": (0.0, 4.0), "both": (-1.0, 4.0)},
    )
    assert len(set(scales.values())) == 1 and scales["a"].scale == pytest.approx(5 / 255)


@given(ENDS, st.floats(-30, 30), st.floats(-30, 30))
def test_codes_clip_by_themselves_or_not(ends, low, high):
    found = code_scales({"a": Kin("a")}, {"a": ends})["a"]
    low, high = min(low, 0.0, high), max(low, 0.0, high)
    numbers = [found.scale * (code - found.zero) for code in range(256)]
    inside = all(low - found.scale / 2 < number < high + found.scale / 2 for number in numbers)
    assert found.clips(low, high) == inside
    nearest = min(range(256), key=lambda code: abs(numbers[code] - high))
    assert abs(numbers[found.code(high)] - high) <= abs(numbers[nearest] - high) * (1 + 1e-9) + 1e-12


def test_without_an_end_nothing_is_clipped_there():
    assert CodeScale(0.1, 0).clips(0.0, inf) and not CodeScale(0.1, 1).clips(0.0, inf)
    assert CodeScale(0.1, 7).code(inf) == 255 and CodeScale(0.1, 7).code(-inf) == 0


def test_parts_of_very_different_ranges_keep_scales_of_their_own():
    a, b, both = (ir.Value(name=name) for name in ("a", "b", "both"))
    ranges = {"a": (0.0, 1.0), "b": (-4.0, 4.0), "both": (-4.0, 4.0)}
    scales = code_scales(families([unit("concat", [a, b], both)], ranges), ranges)
    assert scales["b"] == scales["both"] and scales["a"] == CodeScale(1 / 255, 0)


@pytest.mark.parametrize(
    ("x", "factor", "offset", "joined"),
    [
        ((-1.0, 1.0), 1.0, 0.2, True),  # zero on either side is inside the other
        ((-1.0, 1.0), 1.0, 200.0, False),  # of 255 steps, x would keep three
        ((99.0, 101.0), 1.0, -100.0, False),  # of 255 steps, the sum would keep five
        ((0.0, 1.0), 1.0, 1.0, False),  # twice as wide as x needs
        ((0.0, 255.0), 2 / 255, -1.0, True),  # pixels
        ((-1.0, 1.0), 1e-3, 0.0, True),
    ],
)
def test_a_value_and_its_sum_with_something_large_keep_scales_of_their_own(x, factor, offset, joined):
    a, b = ir.Value(name="a"), ir.Value(name="b")
    ranges = {"a": x, "b": tuple(end * factor + offset for end in x)}
    parts = [unit("affine", [a], b, factor, offset)]
    scales = code_scales(families(parts, ranges), ranges)
    assert scales["b"].follows(scales["a"], factor, offset) == joined
    for name, (low, high) in ranges.items():
        own = max(high, 0) - min(low, 0)
        steps = 256 if joined else 255  # a common scale may be larger by less than a step in all, to divide the offset
        assert scales[name].scale * 255 <= (1.25 if joined else 1.0) * own * steps / 255 * (1 + 1e-6)


@given(graphs())
def test_what_shares_codes_follows(made):
    parts, ranges = made
    scales = code_scales(families(parts), ranges)
    for it in parts:
        if it.kind == "affine":
            assert scales[it.out.name].follows(scales[it.reads[0].name], it.factor, it.offset)
