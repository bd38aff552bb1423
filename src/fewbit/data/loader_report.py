# SPDX-License-Identifier: Apache-2.0
"""What a loader did: how much, how fast, how much of it padding, where it went and who made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple


class Tally(NamedTuple):
    """What is in a batch.

    Args:
        samples: how many.
        useful: tokens (or steps of a signal, or pixels) that are not padding.
        places: all of them.
    """

    samples: int
    useful: int
    places: int


def count(samples: Sequence[Any], batch: Any) -> Tally:
    """What is in a batch, and what of it is padding: by the masks of padded samples, else by their lengths."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    if ids is not None and hasattr(ids, "numel"):
        return Tally(len(samples), sum(map(_tokens, samples)), ids.numel())
    mask = batch.get("pixel_mask", batch.get("attention_mask")) if isinstance(batch, Mapping) else None
    if mask is not None and hasattr(mask, "numel"):
        return Tally(len(samples), int(mask.sum()), mask.numel())
    return Tally(len(samples), len(samples), len(samples))


def _tokens(sample: Any) -> int:
    mask = sample.get("attention_mask")
    return len(sample["input_ids"]) if mask is None else int(sum(mask))


@dataclass
class LoaderReport:
    """Grows while a loader is read.

    Args:
        device: where batches are put.
        why_device: how it came to be that one.
        workers: how many threads or processes prepare batches; 0 if the reader does it itself.
        kind: `none`, `thread` or `process`.
        why_workers: what was measured.
        batches: handed out so far, over all epochs.
        samples: in them.
        useful: tokens in them, or steps or pixels, that are not padding.
        places: all of them.
        seconds: from the first request to the last batch.
        waited: seconds of these in which the reader waited for a batch.
        notes: what was assumed or done differently.
    """

    device: str = "cpu"
    why_device: str = ""
    workers: int | None = None
    kind: str = "none"
    why_workers: str = "measured when the first batch is asked for"
    batches: int = 0
    samples: int = 0
    useful: int = 0
    places: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def padding_waste(self) -> float:
        """The share of all places that is padding."""
        return 1 - self.useful / self.places if self.places else 0.0

    @property
    def samples_per_second(self) -> float:
        """As they were read, the reader's own work included."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Without padding, as they were read, the reader's own work included."""
        return self.useful / self.seconds if self.seconds else 0.0

    def add(self, tally: Tally, waited: float, passed: float) -> None:
        """One batch more.

        Args:
            tally: what is in it.
            waited: for how long it was waited for.
            passed: since the last one, or since reading began.
        """
        self.batches += 1
        self.samples += tally.samples
        self.useful += tally.useful
        self.places += tally.places
        self.waited += waited
        self.seconds += passed

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        figures = ("padding_waste", "samples_per_second", "tokens_per_second")
        return asdict(self) | {name: getattr(self, name) for name in figures}

    def __str__(self) -> str:
        workers = "not chosen yet" if self.workers is None else f"{self.workers} ({self.kind})"
        lines = [
            f"device   {self.device}: {self.why_device}",
            f"workers  {workers}: {self.why_workers}",
            f"read     {self.batches:,} batches, {self.samples:,} samples, {self.padding_waste:.1%} padding",
            f"speed    {self.samples_per_second:,.0f} samples/s, {self.tokens_per_second:,.0f} tokens/s, "
            f"{self.waited:.2f} s of {self.seconds:.2f} s waited",
        ]
        return "\n".join([*lines, *(f"note     {note}" for note in self.notes)])
