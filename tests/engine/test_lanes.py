# SPDX-License-Identifier: Apache-2.0
"""Sums in an order that does not go by the number of workers: dealt to lanes, added lane after lane."""

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.engine.collect import is_held_out
from fewbit.engine.lanes import Lanes, LaneSums
from fewbit.engine.workers import Workers
from fewbit.model.walking import TRIES, Inputs

COUNTS = st.integers(1, 12)


class Pretended(Workers):
    """Workers that are threads of this process, and hand tensors over by a table."""

    def __init__(self, rank, count, table, barrier):
        super().__init__(rank, count)
        self._table, self._barrier = table, barrier

    def say(self, word=None):
        self._table[self.rank] = word
        self._barrier.wait(10)
        words = [self._table[rank] for rank in range(self.count)]
        self._barrier.wait(10)
        return words

    def handed(self, tensors, *, giver, taker):
        given = self.say(tensors)[giver]
        return {name: x.clone() for name, x in given.items()} if taker in (-1, self.rank) else {}


def inputs(items):
    draw = torch.Generator().manual_seed(items)
    return [Inputs(item, torch.randn(7, 6, generator=draw) * 10 ** (item % 4)) for item in range(items)]


def summed(lanes, seen):
    sums = LaneSums(lanes, 1)
    for each in seen:
        if each.item in lanes.mine:
            sums.at(each.item)[0].add(each)
    return sums.total()[0].tensors()


@given(st.integers(1, 200), COUNTS)
def test_every_item_is_in_one_lane_and_every_lane_a_workers(items, count):
    workers = [Lanes(items, Workers(rank, count)) for rank in range(count)]
    mine = [item for lanes in workers for item in lanes.mine]
    assert sorted(mine) == list(range(items))
    assert all(list(lanes.mine) == sorted(lanes.mine) for lanes in workers)
    assert list(workers[0].mine)[:TRIES] == list(range(items))[:TRIES]  # from which the way of a walk is found
    assert workers[0].count <= 8
    assert {lanes.of(item) for lanes in workers for item in lanes.mine} == set(range(workers[0].count))


@pytest.mark.parametrize(("items", "count"), [(3, 2), (9, 2), (20, 3), (41, 5), (33, 11)])
def test_many_workers_add_up_to_the_bits_of_one(items, count):
    seen, table, barrier = inputs(items), {}, threading.Barrier(count)
    seen = [each for each in seen if each.item % 7 != 3]  # items that do not come to a stage
    alone = summed(Lanes(items), seen)
    found = {}

    def work(rank):
        found[rank] = summed(Lanes(items, Pretended(rank, count, table, barrier)), seen)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == count
    for each in found.values():
        assert each.keys() == alone.keys() and all(torch.equal(each[name], alone[name]) for name in alone)


def test_the_sum_is_the_sum():
    seen = inputs(23)
    found = summed(Lanes(23), seen)
    for side, aside in (("teach", False), ("aside", True)):
        x = torch.cat([each.found for each in seen if is_held_out(each.item) == aside]).double()
        torch.testing.assert_close(found[f"{side}.gram"].double(), x.T @ x, rtol=1e-4, atol=1e-2)
        assert int(found[f"{side}.count"]) == len(x)
