# SPDX-License-Identifier: Apache-2.0
"""Hidden states of every batch between two blocks: on the device, in host memory, or in a file above a budget."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor


class Activations:
    """One tensor per batch, [sequences, tokens, features], replaced as blocks are passed.

    On an accelerator batches are copied one ahead of the computation, on a stream of their own.

    Args:
        batches: the inputs of the first block.
        device: where they are needed.
        on_device: bytes that may stay on the device; more goes to the host.
        in_memory: bytes that may stay in the host's memory; more goes to a file.
        folder: where that file lies.
    """

    def __init__(
        self,
        batches: Sequence[Tensor],
        *,
        device: torch.device,
        on_device: int = 256 << 20,
        in_memory: int | None = None,
        folder: Path | None = None,
    ):
        self.device = device
        self.bytes = sum(batch.nbytes for batch in batches)
        if device.type == "cpu" or self.bytes > on_device:
            spill = in_memory is not None and self.bytes > in_memory
            self.place = "disk" if spill else "host"
        else:
            self.place = "device"
        if self.place == "disk":
            with tempfile.TemporaryFile(dir=folder) as file:  # has no name; the mapping keeps it alive
                file.truncate(self.bytes)
                storage = torch.from_file(f"/proc/self/fd/{file.fileno()}", True, self.bytes, dtype=torch.uint8)
            pieces = storage.split([batch.nbytes for batch in batches])
            self._batches = [piece.view(batch.dtype).view(batch.shape) for piece, batch in zip(pieces, batches)]
            for kept, batch in zip(self._batches, batches):
                kept.copy_(batch)
        elif self.place == "host" and device.type == "cuda":
            self._batches = [batch.cpu().pin_memory() for batch in batches]
        else:
            self._batches = list(batches)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" and self.place != "device" else None

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Tensor:
        """One batch on the device; a copy if writing would change it."""
        batch = self._batches[index]
        return batch.clone() if self.place == "disk" and self.device.type == "cpu" else batch.to(self.device)

    def __setitem__(self, index: int, value: Tensor) -> None:
        if self.place == "device" or (self.place == "host" and self.device.type == "cpu"):
            self._batches[index] = value
        else:
            self._batches[index].copy_(value, non_blocking=True)

    def read(self, indices: Sequence[int]) -> Iterator[Tensor]:
        """Batches on the device, in order; the next one is copied while one is used."""
        if self._stream is None:
            yield from (self[index] for index in indices)
            return
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)  # earlier writes to these batches
        following = self._copy(indices[0]) if indices else None
        for position in range(len(indices)):
            current.wait_stream(self._stream)
            batch = following
            assert batch is not None
            batch.record_stream(current)  # or its memory would be reused for the copy after the next
            following = self._copy(indices[position + 1]) if position + 1 < len(indices) else None
            yield batch

    def _copy(self, index: int) -> Tensor:
        assert self._stream is not None
        with torch.cuda.stream(self._stream):
            return self._batches[index].to(self.device, non_blocking=True)
