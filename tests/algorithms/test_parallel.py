# SPDX-License-Identifier: Apache-2.0
import threading

import pytest
import torch

from fewbit.algorithms._parallel import each, one_thread

CPU = torch.device("cpu")


@pytest.fixture(params=[1, 3])
def count(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_every_item_once_and_torch_alone_in_every_thread(count):
    seen = []
    each(
        lambda *item: seen.append((item, torch.get_num_threads(), threading.get_ident())),
        ((i, -i) for i in range(50)),
        CPU,
    )
    assert sorted(item for item, _, _ in seen) == [(i, -i) for i in range(50)]
    assert {threads for _, threads, _ in seen} == {1}
    assert len({ident for _, _, ident in seen}) <= count
    assert torch.get_num_threads() == count


def test_one_thread_nests_and_ends(count):
    for _ in range(2):
        with one_thread() as outer:
            with one_thread() as inner:
                assert outer == inner == count and torch.get_num_threads() == 1
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == count
    torch.set_num_threads(2)
    with one_thread() as now:
        assert now == 2


def test_an_error_comes_out(count):
    def fail(item):
        raise ValueError(item)

    with pytest.raises(ValueError, match="0"):
        each(fail, [(0,), (1,)], CPU)
    assert torch.get_num_threads() == count


def test_several_callers_at_once(count):
    """Each has its own threads, and the number of threads is as before when all are done."""
    seen = []
    callers = [
        threading.Thread(target=lambda: each(lambda item: seen.append(item), [(i,) for i in range(20)], CPU))
        for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert sorted(seen) == sorted(list(range(20)) * 4)
    assert torch.get_num_threads() == count
