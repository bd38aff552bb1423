# SPDX-License-Identifier: Apache-2.0
"""`device_aware_data_loading`: batches of a configuration on a device, epoch after epoch, resumable to the batch."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fewbit.data.dataset import Dataset
from fewbit.data.loading.collate import BATCH_SIZE, Collator, get_custom_data_collator
from fewbit.data.loading.config import DatasetConfig
from fewbit.data.loading.devices import ComputeDevice, choose_device
from fewbit.data.loading.prepare import Prepared, prepare
from fewbit.data.loading.sampler import BatchSampler
from fewbit.data.loading.views import View, lengths_of
from fewbit.data.loading.workers import check_workers
from fewbit.data.text.roles import Ints
from fewbit.errors import FewbitError, FewbitWarning, ResourceError, UsageError, plural, require
from fewbit.rng import generator, isolated

CollateFunction = Callable[[list[Any]], Any]


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
    device = choose_device(target_device, required=settings.require_device)
    workers = settings.workers if workers is None else workers
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise UsageError(
            f"workers={workers!r}", code="workers", param="workers", expected="an integer >= 0", hint="{workers=0}"
        )
    configured_size = getattr(collator, "batch_size", None) or settings.batch_size
    if batch_size is not None and configured_size not in (None, batch_size):
        message = f"batch_size={batch_size} of the call is used, not {configured_size}"
        warnings.warn(FewbitWarning(message, code="setting-overridden"), stacklevel=2)
    prepared = prepare(dataset_config, split)
    for line in prepared.preparation.lines():
        hint = "`fewbit check` lists every problem; custom_config={'on_error': 'raise'} stops at the first"
        warnings.warn(FewbitWarning(line, code="rows-dropped", hint=hint), stacklevel=2)
    if shuffle is None:
        shuffle = split == "train" if settings.shuffle is None else settings.shuffle
    sampler = BatchSampler(
        len(prepared.view),
        batch_size or configured_size or BATCH_SIZE,
        seed=settings.seed,
        shuffle=shuffle,
        drop_last=settings.drop_last if drop_last is None else drop_last,
        rank=int(os.environ.get("RANK", "0")) if rank is None else rank,
        world=int(os.environ.get("WORLD_SIZE", "1")) if world is None else world,
        lengths=lengths_of(prepared.view) if "length_grouping" in prepared.steps else None,
        pool=settings.grouping_pool,
    )
    collator = collator or get_custom_data_collator(dataset_config)
    return Loader(prepared, collator, device, sampler, workers, settings.start_method)


@dataclass
class LoaderReport:
    """What a loader reads and has read.

    Args:
        device_reason: why it is this device.
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

    def count(self, batch: Any) -> None:
        """Count a batch and its tokens."""
        self.batches += 1
        ids: Any = batch.get("input_ids") if isinstance(batch, Mapping) else None
        if not hasattr(ids, "numel"):
            return
        mask = batch.get("attention_mask")
        if mask is not None and mask.dim() == 4:  # a token of a packed row attends at least to itself
            mask = mask[:, 0].diagonal(dim1=1, dim2=2) == 0
        self.padded_tokens += ids.numel()
        self.tokens += ids.numel() if mask is None else int(mask.sum())

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


class Loader:
    """Batches on a device. One pass is one epoch; the next pass is the next epoch, in another order.

    Attributes:
        report: what is read and was read.
    """

    def __init__(
        self,
        prepared: Prepared,
        collator: CollateFunction,
        device: ComputeDevice,
        sampler: BatchSampler,
        workers: int = 0,
        start_method: str | None = None,
    ):
        self.collator, self.device = collator, device
        self._prepared, self._sampler, self._workers, self._start_method = prepared, sampler, workers, start_method
        self._first = 0  # the batch that the next pass begins with
        preparation = prepared.preparation
        self.report = LoaderReport(
            device.name, device.reason, workers, preparation.rows, len(prepared.view), dict(preparation.dropped),
            list(preparation.notes),
        )  # fmt: skip

    def __len__(self) -> int:
        """Batches per epoch."""
        return len(self._sampler)

    @property
    def dataset(self) -> Dataset:
        """The prepared samples, as they are in epoch 0."""
        return self._prepared.dataset()

    @property
    def epoch(self) -> int:
        """The epoch of the next pass."""
        return self._sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass; the position inside the current epoch stays."""
        if epoch != self.epoch:
            self._sampler.epoch, self._sampler.batch, self._first = epoch, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Where reading is: a few numbers. What workers prepared ahead does not count."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at the position saved by `state_dict`; a state of another order is a `UsageError`."""
        self._sampler.load_state_dict(state)
        self._first = self._sampler.batch

    def __iter__(self) -> Iterator[Any]:
        torch = require("torch", extra="torch", purpose="batches")
        sampler = self._sampler
        sampler.batch, self._first = self._first, 0  # a pass that was interrupted starts over
        epoch = EpochBatches(self._prepared.view, self.collator, sampler.seed, sampler.epoch, sampler.batches())
        context = check_workers(epoch, self._start_method) if self._workers else None
        batches = torch.utils.data.DataLoader(
            epoch, batch_size=None, sampler=range(sampler.batch, len(epoch)), collate_fn=_same,
            num_workers=self._workers, multiprocessing_context=context, pin_memory=self.device.pins_memory,
            generator=torch.Generator(),  # otherwise a number is drawn from the global generator
        )  # fmt: skip
        try:
            for batch in batches:
                if isinstance(batch, FewbitError):
                    raise batch
                self.report.count(batch)
                sampler.advance()
                yield _to_device(batch, self.device.device)
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise ResourceError(
                f"a worker process died: {str(error).splitlines()[0]}", code="worker-died",
                expected="enough memory, and code that runs in another process", hint="{workers=0} shows the reason",
            ) from error  # fmt: skip


@dataclass(frozen=True, eq=False)
class EpochBatches:
    """The batches of one epoch by number; the same in any process, since chance depends on seed and numbers only."""

    view: View
    collator: CollateFunction
    seed: int
    epoch: int
    batches: Sequence[Ints]

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> Any:
        """One batch, or the error as a value: DataLoader would turn an exception in a worker into text."""
        indices = self.batches[number].tolist()
        try:
            samples = [self.view.get(index, self.epoch) for index in indices]
            if isinstance(self.collator, Collator):
                return self.collator(samples, [self._name(index) for index in indices])
            with isolated(int(generator(self.seed, self.epoch, number).integers(2**32))):
                return self.collator(samples)
        except FewbitError as error:
            return error

    def _name(self, index: int) -> str:
        location = str(self.view.location(index))
        return f"sample {index}" if location.startswith("sample ") or not location else f"sample {index} ({location})"


def _same(batch: Any) -> Any:
    return batch


def _to_device(value: Any, device: Any) -> Any:
    if hasattr(value, "to") and hasattr(value, "device"):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {name: _to_device(item, device) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_to_device(item, device) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
