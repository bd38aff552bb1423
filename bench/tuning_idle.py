# SPDX-License-Identifier: Apache-2.0
"""How long the device waits for data in a run of `finetune`, as a share of the time the steps take.

    python bench/tuning_idle.py [--device cuda] [--size small|135m] [--model FOLDER] [--rows 20000] [--steps 100]

The call is a user's, `finetune(folder, "rows.jsonl")`: rows of a few to a thousand words, tokenized by the run itself,
batches padded to their longest, workers chosen by it. On a GPU nothing is made to wait for the measurement: an event
is recorded when the loop asks for a batch and one when it has it. The time between them on the GPU is what it had
nothing to do for want of a batch: while work is queued the two are reached one right after the other. On a CPU the
loop itself waits, and a clock says how long. A line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fewbit.tuning.feeding import Feed, Part
from fewbit.tuning.finetune import finetune
from fewbit.tuning.loop import Loop
from tuning_llama import SIZES, make_folder
from tuning_loader import WORK, make_rows

FIRST = 10
"""Steps that are left out: kernels are chosen and memory is taken in them."""


def main() -> None:
    """Measure, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", choices=SIZES, default="small", help="of a random Llama; 135m is SmolLM2's shape")
    parser.add_argument("--model", type=Path, help="a Hugging Face folder with a tokenizer, instead")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int)
    given = parser.parse_args()
    folder, rows = given.model or make_folder(given.size), make_rows(given.rows)
    settings = {} if given.workers is None else {"workers": given.workers}
    called = time.perf_counter()
    with watched(given.device) as watch:
        tuned = finetune(
            folder, str(rows), max_steps=given.steps, batch_size=given.batch_size, device=given.device, eval_batches=8,
            **settings,
        )  # fmt: skip
    facts = tuned.fewbit_record.facts
    told = {"device": given.device, "model": str(given.model or given.size), "batch_size": given.batch_size}
    told |= {"precision": facts["precision"], "parameters": facts["parameters"], "rows": given.rows}
    print(json.dumps(told | watch.told() | {"before_first": watch.asked - called}), flush=True)


@contextmanager
def watched(device: str) -> Iterator[Watch]:
    """Within the block a run's training data is watched; what it is judged by is not."""
    watch, run = Watch(device), Loop.run

    def watching(loop: Loop) -> None:
        watch.feed, loop.feed = loop.feed, watch
        run(loop)

    Loop.run = watching  # type: ignore[method-assign]
    try:
        yield watch
    finally:
        Loop.run = run  # type: ignore[method-assign]


class Watch:
    """A feed that takes down when it was asked for a part and when it had it; see `watched`."""

    feed: Feed

    def __init__(self, device: str):
        self._on_gpu = device.startswith("cuda")
        self._marks: list[tuple[Any, Any]] = []
        self.asked = 0.0

    @property
    def steps(self) -> int | None:
        """Steps of an epoch."""
        return self.feed.steps

    def epoch(self, number: int, start: int = 0) -> Iterator[Part]:
        """The parts of an epoch, from a step of it on."""
        self.asked = self.asked or time.perf_counter()
        parts = self.feed.epoch(number, start)
        while True:
            asked = self._mark()
            part = next(parts, None)
            if part is None:
                return
            self._marks.append((asked, self._mark()))
            yield part

    def fingerprint(self) -> str:
        """What the data is."""
        return self.feed.fingerprint()

    def name(self, items: Sequence[int]) -> str:
        """The items of a part, in words."""
        return self.feed.name(items)

    def told(self) -> dict[str, Any]:
        """From one batch that was there to the last: seconds, those of them spent waiting, their share."""
        first = min(FIRST, len(self._marks) - 2)
        counted = self._marks[first + 1 :]
        seconds = self._between(self._marks[first][1], counted[-1][1])
        waits = [self._between(*each) for each in counted]
        workers = getattr(getattr(self.feed, "_fetched", None), "_workers", None)
        return {
            "steps": len(counted), "seconds": seconds, "waited": sum(waits), "longest": max(waits),
            "idle": sum(waits) / seconds, "workers": None if workers is None else f"{workers.number} {workers.kind}",
        }  # fmt: skip

    def _mark(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, before: Any, after: Any) -> float:
        if not self._on_gpu:
            return float(after - before)
        after.synchronize()
        return float(before.elapsed_time(after)) / 1000


if __name__ == "__main__":
    os.environ.setdefault("FEWBIT_CACHE", str(WORK / "cache"))
    main()
