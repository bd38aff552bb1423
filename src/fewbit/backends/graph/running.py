# SPDX-License-Identifier: Apache-2.0
"""One pass of a model over items, with what is asked about its values computed inside the graph.

The session runs in a thread of its own, one item at a time; meanwhile, in the caller's thread, what the item before
showed is handed over and the next one is made. So user code never runs in a thread that is not its own.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fewbit.backends.graph.feeding import check_feed
from fewbit.backends.graph.padding import real_positions
from fewbit.backends.graph.probing import Probe
from fewbit.backends.graph.sessions import session
from fewbit.backends.graph.shaping import value_shapes
from fewbit.backends.graph.sights import Sight
from fewbit.errors import DataError, require
from fewbit.model.watch import VALUES, stride

__all__ = ["Sight", "run"]

Feed = Mapping[str, Any]
Sizes = tuple[tuple[int, ...], ...]


def run(
    model: ir.Model,
    items: Iterable[Feed],
    sights: Sequence[Sight],
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> int:
    """Run a model over items and show what is asked about its values.

    Args:
        model: the model; it is not changed.
        items: arrays by input.
        sights: what is asked; where it is nothing, the model is run as it is.
        shapes: what `value_shapes` gave for one item; found with the first if not given.

    Returns:
        The number of items.

    Raises:
        UsageError: a value that cannot be watched.
        DataError: an item that does not fit the model, or on which it fails.
    """
    source = iter(items)
    try:
        first = next(source, None)
        if first is None:
            return 0
        check_feed(model.graph, first, 0)
        probe = Probe(model, sights, value_shapes(model, first) if shapes is None else shapes) if sights else None
        return _Pass(model, probe, first).over(chain([first], source))
    finally:
        if isinstance(source, Generator):
            source.close()


class _Pass:
    """A session, and what it has seen."""

    def __init__(self, model: ir.Model, probe: Probe | None, first: Feed):
        self._graph, self._probe = model.graph, probe
        self._session = session(model if probe is None else probe.model)
        self._options = require("onnxruntime", extra="onnx", purpose="running ONNX models").RunOptions()
        self._shapes: dict[Sizes, list[tuple[int, ...]]] = {}
        self._latest = _sizes(first)
        if probe is not None:
            self._shapes[self._latest] = probe.shapes

    def over(self, items: Iterable[Feed]) -> int:
        """Run all items; what one showed is handed over while the next one runs."""
        count, waiting = 0, None
        with ThreadPoolExecutor(1) as worker:
            try:
                for index, item in enumerate(items):
                    check_feed(self._graph, item, index)
                    steps = self._steps(item)
                    future = worker.submit(self._session.run, None, self._feed(item, steps), self._options)
                    if waiting is not None:
                        self._hand_over(*waiting)
                    waiting, count = (index, item, steps, future), index + 1
                if waiting is not None:
                    self._hand_over(*waiting)
            except BaseException:
                self._options.terminate = True  # what still runs is of no use to anyone
                raise
        return count

    def _feed(self, item: Feed, steps: list[int]) -> dict[str, Any]:
        return dict(item) if self._probe is None else self._probe.feed(item, steps)

    def _hand_over(self, index: int, item: Feed, steps: list[int], future: Future[Any]) -> None:
        try:
            outputs = future.result()
        except Exception as error:  # the runtime's errors have no common class but this
            raise DataError(f"the model fails: {str(error)[:300]}", where=f"item {index}") from error
        if self._probe is None:
            return
        with _one_thread():
            shown = list(self._probe.read(outputs, steps))
            for sight, found in shown:
                if VALUES not in sight.needs:
                    sight.watch.take(found, index)
        real = real_positions(item)
        for sight, found in shown:
            if VALUES in sight.needs and (seen := sight.shown(found, real)):
                sight.watch.take(seen, index)
        self._latest = _sizes(item)
        self._shapes[self._latest] = self._probe.shapes

    def _steps(self, item: Feed) -> list[int]:
        """How to step through each value that a sample is taken of.

        The size of a value is known if an item of the same shapes has been seen. If not, it is taken to be small: not
        larger than it was, and with smaller inputs smaller by the square, as attention is.
        """
        if self._probe is None:
            return []
        sizes = _sizes(item)
        if sizes in self._shapes:
            counts = [float(prod(shape)) for shape in self._shapes[sizes]]
        else:
            ratio = sum(map(prod, sizes)) / max(1, sum(map(prod, self._latest)))
            counts = [prod(shape) * min(1.0, ratio) ** 2 for shape in self._shapes[self._latest]]
        return [stride(max(1, int(count)), sample) for count, sample in zip(counts, self._probe.samples)]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small work in PyTorch beside a session: the session's threads hold all cores, and a second thread would wait for
    one of them a hundred times longer than the work takes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _sizes(item: Feed) -> Sizes:
    return tuple(tuple(np.shape(item[name])) for name in sorted(item))
