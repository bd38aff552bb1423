# SPDX-License-Identifier: Apache-2.0
"""Patterns of zeros: exact counts, ties, N:M, blocks at edges, kernels."""

from decimal import ROUND_HALF_UP, Decimal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.errors import UsageError
from fewbit.numerics.sparsity import Pattern, count, highest, kept

SHARES = st.integers(0, 1000).map(lambda n: n / 1000)
# Few different scores, so that most of them are equal to others.
SCORES = st.tuples(st.integers(1, 7), st.integers(1, 13), st.integers(1, 4), st.integers(0, 2**16)).map(
    lambda given: torch.randint(
        given[2], given[:2], generator=torch.Generator().manual_seed(given[3]), dtype=torch.float32
    )
)
KERNELS = st.tuples(*(st.integers(1, 6), st.integers(1, 9), st.integers(1, 3), st.integers(1, 2)), st.integers(0, 99))


def drawn(shape, seed):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@given(SHARES, st.integers(0, 10**7))
def test_a_count_is_the_share_as_it_is_written_rounded_half_up(share, total):
    assert count(share, total) == int((Decimal(str(share)) * total).to_integral_value(ROUND_HALF_UP))


@given(SCORES, SHARES)
def test_zeros_are_as_many_as_asked_for_whatever_the_ties(scores, share):
    """Defect (g): a threshold on tied scores prunes all; defect (n): one too many, and none of it at a share of 1."""
    mask = kept(scores, Pattern(share))
    assert int((~mask).sum()) == count(share, scores.numel())
    by_row = kept(scores, Pattern(share, by_row=True))
    assert set((~by_row).sum(1).tolist()) == {count(share, scores.shape[1])}


@given(SCORES, SHARES)
def test_what_is_kept_is_no_lower_than_what_is_not_and_the_first_of_equals(scores, share):
    """The order by score, then by place, of every element: Python's own sort says the same."""
    flat = scores.flatten().tolist()
    order = sorted(range(len(flat)), key=lambda at: (-flat[at], at))
    wanted = set(order[: len(flat) - count(share, len(flat))])
    assert set(kept(scores, Pattern(share)).flatten().nonzero()[:, 0].tolist()) == wanted


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("block", [(1, 1), (2, 4)])
@pytest.mark.parametrize("by_row", [False, True])
def test_nothing_and_everything(share, block, by_row):
    mask = kept(drawn((5, 7), 0), Pattern(share, block=block, by_row=by_row))
    assert bool((mask == (share == 0)).all())


@given(SCORES, st.integers(0, 4), st.integers(1, 5))
def test_n_of_m_are_kept_and_not_pruned(scores, keep, of):
    """Defect (i): N:M keeps N of M here, for every N and M, not only where N is half of M."""
    if keep > of:
        with pytest.raises(UsageError, match=f"{keep}:{of}"):
            Pattern.read(f"{keep}:{of}")
        return
    mask = kept(scores, Pattern.read(f"{keep}:{of}"))
    whole = scores.shape[1] // of * of
    for row, chosen in zip(scores, mask):
        for at in range(0, whole, of):
            group = row[at : at + of].tolist()
            wanted = sorted(range(of), key=lambda place: (-group[place], place))[:keep]
            assert chosen[at : at + of].nonzero()[:, 0].tolist() == sorted(wanted)
    assert bool(mask[:, whole:].all())  # what is left over stays


@given(KERNELS, st.integers(1, 4))
def test_the_mask_of_a_kernel_has_its_shape_and_goes_along_the_input(given_shape, keep):
    """Defect (h): a mask of `[out, kernel, in]` where `[out, in, kernel]` was asked for."""
    *shape, seed = given_shape
    scores = drawn(shape, seed)
    mask = kept(scores, Pattern(0, keep, 4))
    assert mask.shape == scores.shape
    for y in range(shape[2]):
        for x in range(shape[3]):
            assert torch.equal(mask[:, :, y, x], kept(scores[:, :, y, x], Pattern(0, keep, 4)))


@given(KERNELS, SHARES)
def test_zeros_of_a_kernel_are_counted_over_the_weight_or_over_an_output(given_shape, share):
    *shape, seed = given_shape
    scores = drawn(shape, seed)
    assert int((~kept(scores, Pattern(share))).sum()) == count(share, scores.numel())
    by_row = (~kept(scores, Pattern(share, by_row=True))).flatten(1).sum(1)
    assert set(by_row.tolist()) == {count(share, scores[0].numel())}


@given(KERNELS, st.integers(1, 3), st.integers(1, 5), SHARES, st.booleans())
def test_blocks_are_zero_together_and_counted_exactly_also_at_edges(given_shape, tall, wide, share, by_row):
    *shape, seed = given_shape
    scores = drawn(shape, seed)
    mask = kept(scores, Pattern(share, block=(tall, wide), by_row=by_row))
    assert mask.shape == scores.shape
    blocks = {}
    for out, inner, *place in mask.nonzero().tolist() + (~mask).nonzero().tolist():
        key = out // tall, inner // wide, *place
        blocks.setdefault(key, []).append((bool(mask[(out, inner, *place)]), float(scores[(out, inner, *place)])))
    assert all(len({chosen for chosen, _ in block}) == 1 for block in blocks.values())
    states = {key: block[0][0] for key, block in blocks.items()}
    rows = [[key for key in states if key[0] == row] for row in {key[0] for key in states}] if by_row else [states]
    for keys in rows:
        assert sum(not states[key] for key in keys) == count(share, len(keys))
        sums = {key: sum(score for _, score in blocks[key]) for key in keys}
        least = min((sums[key] for key in keys if states[key]), default=0)
        assert all(sums[key] <= least + 1e-5 for key in keys if not states[key] and least)


def test_blocks_stand_upright_in_outputs_not_in_the_elements_of_a_kernel():
    """A block of two outputs holds the same element of two kernels."""
    mask = kept(drawn((4, 2, 1, 3), 3), Pattern(0.5, block=(2, 1)))
    assert torch.equal(mask[0::2], mask[1::2])


@given(SCORES, st.integers(-1, 15))
def test_the_highest_of_each_row(scores, keep):
    order = torch.argsort(scores, dim=1, descending=True, stable=True)[:, : max(keep, 0)]
    wanted = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, order, True)
    assert torch.equal(highest(scores, keep), wanted)


def test_the_same_with_any_number_of_threads():
    before, scores, found = torch.get_num_threads(), drawn((300, 500), 1).mul(20).round(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(
            [kept(scores, pattern) for pattern in (Pattern(0.37), Pattern.read("2:4"), Pattern(0.5, by_row=True))]
        )
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*found))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Pattern(1.5), "share of 1.5"),
        (lambda: Pattern(float("nan")), "share of nan"),
        (lambda: Pattern.read("5:4"), "5:4"),
        (lambda: Pattern.read("2:0"), "2:0"),
        (lambda: Pattern.read("2:4", 0.7), "share of 0.7"),
        (lambda: Pattern.read("block4", 0.5), "block4"),
        (lambda: Pattern.read("unstructured"), "without a share"),
        (lambda: Pattern.read("0x4", 0.5), r"block of \(0, 4\)"),
        (lambda: Pattern.read(0.5, 0.6), "0.5 and 0.6"),
        (lambda: Pattern(0.5, 2, 4, (1, 4)), "N:M of blocks"),
        (lambda: Pattern(0.5, keep=2), "2:0"),
    ],
)
def test_what_means_nothing_is_refused(make, says):
    with pytest.raises(UsageError, match=says):
        make()


def test_a_share_follows_from_n_and_m():
    assert Pattern(0.9, 1, 4).share == Pattern.read("1:4").share == 0.75
    assert Pattern.read("1:4").text == "1:4" and Pattern.read("1x4", 0.5).text == "50% in blocks of 1x4"
