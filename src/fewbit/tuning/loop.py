# SPDX-License-Identifier: Apache-2.0
"""The loop: steps, and from time to time numbers, an evaluation, a checkpoint; until all is done or nothing improves.

```
run ─▶ _resume ─▶ epochs ─▶ Stepper.run(part)… ─▶ Stepper.finish ─▶ _prune ─▶ _log ─▶ _evaluate ─▶ _save
```
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fewbit.data.findings import Progress
from fewbit.errors import DataError, UsageError
from fewbit.tuning import checkpoints
from fewbit.tuning.checkpoints import Checkpoints
from fewbit.tuning.evaluating import Evaluator, is_better
from fewbit.tuning.feeding import Feed, Part
from fewbit.tuning.keeping import Keeper, Place
from fewbit.tuning.machine import Machine
from fewbit.tuning.masks import Masks
from fewbit.tuning.metrics_log import MetricsLog
from fewbit.tuning.options import Options
from fewbit.tuning.out_of_memory import Doing, Situation, explained
from fewbit.tuning.pruning import Pruning
from fewbit.tuning.schedules import factor
from fewbit.tuning.stepping import Stepper, Told
from fewbit.tuning.unfit_samples import samples_named


@dataclass(frozen=True)
class _Pending:
    """A step whose numbers are still on the device."""

    step: int
    epoch: int
    rate: float
    told: Told
    items: Sequence[int]


@dataclass
class Loop:
    """A run.

    Args:
        machine: what it runs on.
        model: as the machine shares it.
        optimizer: of its parameters.
        stepper: carries out steps.
        feed: what it learns from.
        evaluator: judges it; none if there is nothing to judge by.
        judged_by: the number of an evaluation that says which is better, and which way.
        options: of the run.
        total: how many steps there are.
        log: takes the numbers.
        kept: the checkpoints; none to keep none.
        progress: shows how far it is.
        unit: what sums are divided by on their way back; see `Stepper`.
        pruning: takes weights out on the way; a model counts as the best only when it has taken out all.
        masks: the zeros that hold; with `pruning` they are in checkpoints.
    """

    machine: Machine
    model: nn.Module
    optimizer: torch.optim.Optimizer
    stepper: Stepper
    feed: Feed
    evaluator: Evaluator | None
    judged_by: tuple[str, str]
    options: Options
    total: int
    log: MetricsLog
    kept: Checkpoints | None = None
    progress: Progress = field(default_factory=Progress)
    unit: float = 1.0
    pruning: Pruning | None = None
    masks: Masks | None = None
    place: Place = field(default_factory=Place)
    before: dict[str, float] | None = None
    after: dict[str, float] | None = None

    def __post_init__(self) -> None:
        self._inner: nn.Module = getattr(self.model, "module", self.model)
        grown = None if self.pruning is None else self.masks  # others are found in the weights
        self._keeper = Keeper(self.machine, self._inner, self.optimizer, self.kept, grown)
        self._pending: list[_Pending] = []
        self._since = time.perf_counter()

    def run(self) -> None:
        """Train to the end; the model then has the weights that are wanted of it."""
        place, options = self.place, self.options
        self._since = time.perf_counter()
        if self.evaluator is not None and place.judged is None:
            self._judge()
            self.before = self.after
        if place.step == 0:
            self._prune()
        self.model.train()
        while place.step < self.total and not place.done:
            with self._room("learning"):  # reading ahead puts batches on the device too
                if not self._epoch():
                    break
            place.epoch, place.offset = place.epoch + 1, 0
        self._flush()
        if 0 < place.step != place.judged:  # a checkpoint of the last step that was saved before its evaluation
            self._judge()
        if place.step == 0:
            raise DataError("the training data has no batch", code="no-samples", expected="at least one")
        if self.evaluator is not None and options.keep_best and place.best_step not in (None, place.step):
            self._return_to_best()
        self.model.eval()

    def where(self) -> str:
        """Where the run is, as far as anybody knows who does not wait for the device."""
        return f"step {self._pending[0].step if self._pending else self.place.step} to {self.place.step + 1}"

    def _epoch(self) -> bool:
        """One pass over the data, or what is left of it; whether there was anything."""
        place, found = self.place, False
        items: list[int] = []
        for part in self.feed.epoch(place.epoch, place.offset):
            where = f"training data, step {place.step + 1}"
            with self._room("learning", part), samples_named(part.batch, part.items, self.feed.name, where):
                self.stepper.run(part)
            found = True
            items += part.items if part.counts else ()
            if not part.last:
                continue
            rate = self.options.lr * factor(self.options.schedule, place.step, self.total, self.options.warmup)
            if self.pruning is not None:
                self.pruning.see(place.step + 1, self.total)
            with self._room("updating"):
                told = self.stepper.finish(rate)
            place.step, place.offset = place.step + 1, place.offset + 1
            self._pending.append(_Pending(place.step, place.epoch, rate, told, tuple(items)))
            items = []
            self._prune()
            ends = place.step == self.total
            if len(self._pending) >= self.options.log_every:
                self._flush()
            # The last step is evaluated before it is saved: a run that goes on from it has nothing left to do.
            if ends or (self.options.eval_every is not None and place.step % self.options.eval_every == 0):
                self._judge()
            ends = ends or place.done
            if self.options.save_every is not None and (place.step % self.options.save_every == 0 or ends):
                self._save()
            if ends:
                break
        # A run that goes on from the last step of an epoch has still to do what is done at its end.
        if self.options.eval_every is None and place.judged != place.step:
            self._judge()
        if self.options.save_every is None and found:
            self._save()
        return found or place.offset > 0

    def _room(self, doing: Doing, part: Part | None = None) -> AbstractContextManager[None]:
        """Within the block, what PyTorch says of memory that is not there is told with what was going on."""

        def situation() -> Situation:
            batch, items = (None, None) if part is None else (part.batch, self.feed.name(part.items))
            saved = None if self.kept is None else self.kept.last()
            step = None if saved is None else checkpoints.step_of(saved)
            writes, at = self.kept is not None, self.place.step + (doing != "judging")
            return Situation(self.machine.device, self.options, doing, at, batch, items, step, writes, self.feed.cuts)

        return explained(situation)

    def _prune(self) -> None:
        """Let the masks grow, weights and the optimizer's memory with them."""
        if self.pruning is None or self.masks is None:
            return
        sparsity = self.pruning.at(self.place.step, self.total)
        if sparsity is not None:
            self.masks.apply_weights(self.optimizer)
            self._flush()
            self.log.write([{"kind": "prune", "step": self.place.step, "sparsity": sparsity}])

    def _flush(self) -> None:
        """Fetch the numbers of the steps since the last time, all at once."""
        if not self._pending:
            return
        told = [torch.cat([each.told.sums, each.told.norm.to(each.told.sums)[None]]) for each in self._pending]
        rows = torch.stack(told).cpu().tolist()
        now = time.perf_counter()
        each = (now - self._since) / len(rows)
        self._since = now
        lines = []
        for done, (loss, count, tokens, norm) in zip(self._pending, rows):
            mean = loss / max(1.0, count)
            self._refuse_broken(done, mean, norm)
            self.place.seconds += each
            self.place.tokens += tokens
            line = {"kind": "step", "step": done.step, "epoch": done.epoch, "loss": mean, "lr": done.rate}
            lines.append(line | {"norm": norm, "tokens": tokens, "seconds": each})
        self._pending = []
        self.log.write(lines)
        self.progress.advance("training", self.place.step, self.total)

    def _refuse_broken(self, done: _Pending, loss: float, norm: float) -> None:
        if math.isfinite(loss) and (math.isfinite(norm) or self.machine.precision == "fp16"):
            return  # in fp16 a step whose gradients have no room is left out, and the next ones are scaled down
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"the loss is {loss:.4g} and its gradient {norm}"
        raise DataError(
            f"{what} in step {done.step}",
            code="loss-broken",
            where=f"step {done.step}, {self.feed.name(done.items)}",
            expected="a finite number",
            try_="look at these items; if nothing is wrong with them, a lower lr, more warmup, or precision='bf16'",
        )

    def _evaluate(self) -> dict[str, float]:
        assert self.evaluator is not None
        self._flush()
        with self._room("judging"):
            numbers = self.evaluator(self.model)
        self.log.write([{"kind": "eval", "step": self.place.step, "epoch": self.place.epoch, **numbers}])
        self._since = time.perf_counter()  # evaluations are not training
        return numbers

    def _judge(self) -> None:
        """Evaluate, remember the best, and see whether it is time to stop."""
        if self.evaluator is None:
            return
        place, (name, direction) = self.place, self.judged_by
        self.after, place.judged = self._evaluate(), place.step
        if name not in self.after:
            raise UsageError(f"an evaluation has no number {name!r}", where="judge_by", expected=", ".join(self.after))
        if self.pruning is not None and (place.step == 0 or not self.pruning.is_done(place.step, self.total)):
            return  # with more weights than it will have it is no rival of the later ones
        numbers = (self.after[name], self.after["loss"])
        if is_better(numbers, place.best, direction):
            place.best, place.best_step, place.waited = numbers, place.step, 0
            if self.options.keep_best:
                self._keeper.keep_best(place)
        else:
            place.waited += 1
        place.done = self.options.patience is not None and place.waited >= self.options.patience

    def _return_to_best(self) -> None:
        self._keeper.return_to_best()
        best = [line for line in self.log.of("eval") if line["step"] == self.place.best_step]
        self.after = {name: best[-1][name] for name in best[-1] if name not in ("kind", "step", "epoch")}

    def _save(self) -> None:
        if self.kept is None:
            return
        self._flush()
        self._keeper.save(self.place, {"unit": self.unit, "before": self.before, "after": self.after})
        self._since = time.perf_counter()

    def resume(self, tensors: dict[str, torch.Tensor], found: dict[str, Any]) -> str | None:
        """Go on from a checkpoint; what could not be taken over, in words."""
        self.place, note = self._keeper.put_back(tensors, found)
        self.before, self.after = found["before"], found["after"]
        return note
