# SPDX-License-Identifier: Apache-2.0
import random
import threading

import numpy as np
import pytest

from fewbit.rng import generator, isolated


def states():
    torch = pytest.importorskip("torch")
    return random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()


def draw():
    torch = pytest.importorskip("torch")
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_global_states_are_as_before_and_draws_depend_on_the_seed_only():
    before = states()
    with isolated(3):
        first = draw()
    draw_outside = draw()
    with isolated(3):
        second = draw()
    assert first == second and first != draw_outside
    with isolated(4):
        assert draw() != first
    del before


def test_states_are_restored_after_an_error():
    before = states()
    with pytest.raises(KeyError), isolated(1):
        draw()
        raise KeyError
    assert states() == before


def test_two_threads_do_not_disturb_each_other_or_the_caller():
    before, results = states(), {}

    def work(seed):
        with isolated(seed):
            results[seed] = [draw() for _ in range(200)]

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):
        with isolated(seed):
            assert results[seed] == [draw() for _ in range(200)]
    assert states() == before


def test_a_generator_depends_on_all_its_numbers():
    assert generator(1, 2).random() == generator(1, 2).random() != generator(2, 1).random()
