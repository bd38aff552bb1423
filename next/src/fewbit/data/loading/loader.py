# SPDX-License-Identifier: Apache-2.0
"""`device_aware_data_loading`: batches of a configuration on a device, epoch after epoch, resumable to the batch."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from fewbit.data.dataset import Dataset
from fewbit.data.loading.collate import BATCH_SIZE, Collator, get_custom_data_collator
from fewbit.data.loading.config import DatasetConfig
from fewbit.data.loading.devices import ComputeDevice, choose_device
from fewbit.data.loading.order import SamplingOrder
from fewbit.data.loading.prepare import Prepared, prepare
from fewbit.data.loading.views import View, lengths_of
from fewbit.data.loading.workers import check_workers
from fewbit.errors import FewbitError, FewbitWarning, ResourceError, UsageError, plural, require
from fewbit.rng import generator, isolated

CollateFunction = Callable[[list[Any]], Any]


@dataclass
class LoaderReport:
    """What a loader reads and has read.

    Args:
        device: where batches are put.
        device_reason: why it is this one.
        workers: processes that prepare batches.
        rows: of the split, before anything was left out.
        samples: that are read in every epoch.
        dropped: rows that were left out, by reason.
        notes: what was counted or assumed: truncation, packing, validation rows.
        batches: handed out so far.
        tokens: in them, without padding.
        padded_tokens: in them, with padding.
    """

    device: str = "cpu"
    device_reason: str = ""
    workers: int = 0
    rows: int = 0
    samples: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    batches: int = 0
    tokens: int = 0
    padded_tokens: int = 0

    @property
    def padding_share(self) -> float:
        """The share of tokens that are padding."""
        return 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"padding_share": self.padding_share}

    def __str__(self) -> str:
        dropped = sum(self.dropped.values())
        left_out = f", {plural(dropped, 'row')} left out" if dropped else ""
        lines = [
            f"data     {plural(self.samples, 'sample')} of {plural(self.rows, 'row')}{left_out}",
            f"device   {self.device} ({self.device_reason})",
            f"workers  {self.workers}",
            f"read     {plural(self.batches, 'batch')}, {self.padding_share:.1%} padding",
        ]
        lines += [f"dropped  {count:,}: {reason}" for reason, count in self.dropped.items()]
        return "\n".join([*lines, *(f"note     {note}" for note in self.notes)])


def device_aware_data_loading(
    dataset_config: DatasetConfig,
    collator: CollateFunction | None = None,
    target_device: Any = "auto",
    *,
    split: str | None = "train",
    batch_size: int | None = None,
    shuffle: bool | None = None,
    drop_last: bool | None = None,
    workers: int | None = None,
    rank: int | None = None,
    world: int | None = None,
) -> Loader:
    """Batches of a configuration, on a device.

    Args:
        dataset_config: from `generate_dataset_config`.
        collator: from `get_custom_data_collator`, or any function from a list of samples to a batch.
        target_device: `auto`, `cpu`, `gpu`, `cuda:N`, `mps` or `qaic`. One that is not there is the CPU with a warning,
            or an error if the configuration has `require_device`.
        split: `train`, `validation`, another split name of the data, or `None` for every row.
        batch_size: samples per batch; the collator's by default.
        shuffle: a new order in every epoch; only for `train` by default.
        drop_last: leave out a last batch that is not full.
        workers: processes that prepare batches; 0 by default: batches are prepared in this process.
        rank: number of this process; set by `torchrun` by default.
        world: how many processes there are.

    Returns:
        An iterable with `len`, `report`, `set_epoch`, `state_dict` and `load_state_dict`.
    """
    settings = dataset_config.custom_config
    target = choose_device(target_device, required=settings.require_device)
    configured_size = getattr(collator, "batch_size", None) or settings.batch_size
    if batch_size is not None and configured_size not in (None, batch_size):
        message = f"batch_size={batch_size} of the call is used, not {configured_size}"
        warnings.warn(FewbitWarning(message, code="setting-overridden"), stacklevel=2)
    prepared = prepare(dataset_config, split)
    for line in prepared.preparation.lines():
        hint = "`fewbit check` lists every problem; custom_config={'on_error': 'raise'} stops at the first"
        warnings.warn(FewbitWarning(line, code="rows-dropped", hint=hint), stacklevel=2)
    return Loader(
        prepared,
        collator or get_custom_data_collator(dataset_config),
        target,
        batch_size=batch_size or configured_size or BATCH_SIZE,
        seed=settings.seed,
        shuffle=_first(shuffle, settings.shuffle, split == "train"),
        drop_last=_first(drop_last, settings.drop_last),
        workers=settings.workers if workers is None else workers,
        start_method=settings.start_method,
        grouping_pool=settings.grouping_pool if "length_grouping" in prepared.steps else None,
        rank=int(os.environ.get("RANK", "0")) if rank is None else rank,
        world=int(os.environ.get("WORLD_SIZE", "1")) if world is None else world,
    )


class Loader:
    """Batches on a device. One pass is one epoch; the next pass is the next epoch, in another order.

    Attributes:
        epoch: of the next pass.
        report: what is read and was read.
        dataset: the prepared samples.
    """

    def __init__(
        self,
        prepared: Prepared,
        collator: CollateFunction,
        target: ComputeDevice,
        *,
        batch_size: int = BATCH_SIZE,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        workers: int = 0,
        start_method: str | None = None,
        grouping_pool: int | None = None,
        rank: int = 0,
        world: int = 1,
    ):
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
            raise UsageError(
                f"workers={workers!r}", code="workers", param="workers", expected="an integer >= 0",
                hint="{workers=0}",
            )  # fmt: skip
        self.collator, self.target, self.batch_size, self.epoch = collator, target, batch_size, 0
        self._view, self._preparation, self._facts = prepared.view, prepared.preparation, prepared
        self._workers, self._start_method, self._seed = workers, start_method, seed
        self._batch = 0  # of the current pass
        self._resume = 0  # where the next pass begins
        lengths = None if grouping_pool is None else lengths_of(prepared.view)
        self._order = SamplingOrder(
            len(prepared.view), batch_size, seed, shuffle, drop_last, rank, world, lengths, grouping_pool or 1
        )
        preparation = prepared.preparation
        self.report = LoaderReport(
            target.name, target.reason, workers, preparation.rows, len(prepared.view), dict(preparation.dropped),
            list(preparation.notes),
        )  # fmt: skip

    def __len__(self) -> int:
        """Batches per epoch."""
        return len(self._order)

    @property
    def dataset(self) -> Dataset:
        """The prepared samples."""
        return self._facts.dataset()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass; the position inside the current epoch stays."""
        if epoch != self.epoch:
            self.epoch, self._batch, self._resume = epoch, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Where reading is: a few numbers. What workers prepared ahead does not count."""
        return {"epoch": self.epoch, "batch": self._batch, "order": self._order.facts()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at the position saved by `state_dict`.

        Raises:
            UsageError: the state belongs to another order of samples.
        """
        current = self._order.facts()
        changed = [
            f"{name} was {old} and is {current.get(name)}"
            for name, old in state["order"].items()
            if current.get(name) != old
        ]
        if changed:
            raise UsageError(
                f"the state belongs to another order: {'; '.join(changed)}", code="state-mismatch",
                expected="the same data, seed and batch_size", hint="load it into a loader of the same configuration",
            )  # fmt: skip
        self.epoch, self._batch, self._resume = int(state["epoch"]), int(state["batch"]), int(state["batch"])

    def __iter__(self) -> Iterator[Any]:
        torch = require("torch", extra="torch", purpose="batches")
        epoch, start = self.epoch, self._resume
        self._batch, self._resume = start, 0  # an interrupted pass starts over
        jobs = [
            _Job(epoch, start + step, batch.tolist()) for step, batch in enumerate(self._order.batches(epoch, start))
        ]
        fetch = Fetch(self._view, self.collator, self._seed)
        options: dict[str, Any] = {}
        if self._workers:
            options["multiprocessing_context"] = check_workers(fetch, self._start_method)
        batches = torch.utils.data.DataLoader(
            fetch, batch_size=None, sampler=jobs, collate_fn=_same, num_workers=self._workers,
            pin_memory=self.target.pins_memory,
            generator=torch.Generator(),  # otherwise a number is drawn from the global generator
            **options,
        )  # fmt: skip
        try:
            for result in batches:
                if isinstance(result, _Failure):
                    raise result.error()
                self._count(result)
                self._batch += 1
                if self._batch == len(self._order):
                    self.epoch, self._batch = epoch + 1, 0
                yield _to_device(result, self.target.device)
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise ResourceError(
                f"a worker process died: {str(error).splitlines()[0]}", code="worker-died",
                expected="enough memory, and code that runs in another process", hint="{workers=0} shows the reason",
            ) from error  # fmt: skip

    def _count(self, batch: Any) -> None:
        self.report.batches += 1
        ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
        if ids is None or not hasattr(ids, "numel"):
            return
        mask = batch.get("attention_mask")
        self.report.padded_tokens += ids.numel()
        if mask is not None and mask.dim() == 2:
            self.report.tokens += int(mask.sum())
        elif mask is not None and mask.dim() == 4:
            self.report.tokens += int((mask[:, 0].diagonal(dim1=1, dim2=2) == 0).sum())
        else:
            self.report.tokens += ids.numel()


class _Job(NamedTuple):
    epoch: int
    step: int
    indices: list[int]


class Fetch:
    """Prepares one batch; the same in any process, because chance depends on seed, epoch and position only."""

    def __init__(self, view: View, collator: CollateFunction, seed: int):
        self._view, self._collator, self._seed = view, collator, seed

    def __getitem__(self, job: _Job) -> Any:
        try:
            samples = [self._view.get(index, job.epoch) for index in job.indices]
            if isinstance(self._collator, Collator):
                return self._collator(samples, [_name(self._view, index) for index in job.indices])
            with isolated(int(generator(self._seed, job.epoch, job.step).integers(2**32))):
                return self._collator(samples)
        except FewbitError as error:
            return _Failure(error)


class _Failure:
    """An error on its way out of a worker process; DataLoader would turn it into text."""

    def __init__(self, error: FewbitError):
        self._type, self._state, self._arguments = type(error), dict(error.__dict__), error.args

    def error(self) -> FewbitError:
        error = self._type.__new__(self._type)
        error.__dict__.update(self._state)
        error.args = self._arguments
        return error


def _name(view: View, index: int) -> str:
    location = str(view.location(index))
    return f"sample {index} ({location})" if location and not location.startswith("sample ") else f"sample {index}"


def _same(batch: Any) -> Any:
    return batch


def _to_device(value: Any, device: Any) -> Any:
    if hasattr(value, "to") and hasattr(value, "device"):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {name: _to_device(item, device) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_to_device(item, device) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_to_device(item, device) for item in value)
    return value


def _first(*values: bool | None) -> bool:
    return next(bool(value) for value in values if value is not None)
