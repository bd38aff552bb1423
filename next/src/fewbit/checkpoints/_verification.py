# SPDX-License-Identifier: Apache-2.0
"""What was written is what a reader decodes: every tensor once, bit by bit, without a second copy in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from fewbit.checkpoints._base import CheckpointFormat, CheckpointJob, NamedTensor
from fewbit.errors import ModelError
from fewbit.numerics.qtensor import QTensor

_CHUNK = 1 << 22
"""Values that are compared at a time."""


@dataclass(frozen=True)
class Fingerprint:
    """Of the values of a tensor.

    Args:
        shape: of the tensor.
        digest: of its float32 values.
        sums: Σ v, Σ v², Σ i v with i the position, in float64: for values that agree up to rounding.
        exact: whether the digests must be equal.
    """

    shape: tuple[int, ...]
    digest: bytes
    sums: tuple[float, float, float]
    exact: bool = True

    def agrees(self, other: Fingerprint) -> bool:
        """Whether both are of the same tensor."""
        if self.shape != other.shape:
            return False
        if self.exact and other.exact:
            return self.digest == other.digest
        size = max(abs(self.sums[1]), 1e-30)
        count = max(prod(self.shape), 1)
        limits = ((size * count) ** 0.5, size, (size * count) ** 0.5)
        return all(abs(a - b) <= 1e-6 * limit for a, b, limit in zip(self.sums, other.sums, limits))


def fingerprint(value: Any, *, sums: bool = False) -> Fingerprint:
    """Of an array, a `QTensor`, or anything with `dequantize()`; `sums` computes them for exact values too."""
    import torch

    quantized = hasattr(value, "dequantize") and not isinstance(value, torch.Tensor)
    exact = not (isinstance(value, QTensor) and value.grid.two_level)  # a file holds the reciprocal of a global scale
    tensor = torch.as_tensor(value.dequantize() if quantized else value).detach().cpu()
    flat, floating = tensor.reshape(-1), tensor.is_floating_point()
    digest, totals = hashlib.blake2b(digest_size=16), [0.0, 0.0, 0.0]
    for start in range(0, len(flat), _CHUNK):
        part = flat[start : start + _CHUNK]
        if floating:
            part = (part if part.dtype is torch.float64 else part.float()) + 0.0  # a zero has no sign
        digest.update(part.contiguous().view(torch.uint8).numpy().data)
        if sums or not exact:
            wide = part.double()
            place = torch.arange(start, start + len(part), dtype=torch.float64) / len(flat)
            for index, term in enumerate((wide, wide * wide, wide * place)):
                totals[index] += float(term.sum())
    return Fingerprint(tuple(tensor.shape), digest.digest(), (totals[0], totals[1], totals[2]), exact)


def write_verified(
    checkpoint: CheckpointFormat, folder: Path, tensors: Iterable[NamedTensor], job: CheckpointJob
) -> tuple[list[str], int]:
    """Write a checkpoint, read it back with its decoder, and compare.

    Returns:
        The files, and how many tensors were compared.

    Raises:
        ModelError: a tensor is missing, unknown, or has other values.
    """
    files, written = write_noting(checkpoint, folder, tensors, job)
    return files, verify(checkpoint, folder, written)


def write_noting(
    checkpoint: CheckpointFormat, folder: Path, tensors: Iterable[NamedTensor], job: CheckpointJob
) -> tuple[list[str], dict[str, Fingerprint]]:
    """Write a checkpoint and note what each tensor of the source must read back as.

    Args:
        checkpoint: the format.
        folder: to write into.
        tensors: of the model, each once.
        job: what is written.

    Returns:
        The files, and a fingerprint for every tensor that the format holds.
    """
    written: dict[str, Fingerprint] = {}

    def stream() -> Iterator[NamedTensor]:
        for tensor in tensors:
            result = checkpoint.stored(tensor, job)
            if result is not None:
                written[tensor.name] = fingerprint(result.value)
                yield result

    return checkpoint.write(folder, stream(), job), written


def verify(checkpoint: CheckpointFormat, folder: Path, written: dict[str, Fingerprint]) -> int:
    """Compare what a format's decoder reads with what was written; returns how many tensors were compared.

    Raises:
        ModelError: a tensor is missing, unknown, or has other values.
    """
    left = set(written)
    for name, values in checkpoint.read(folder):
        if name not in left:
            raise _wrong_file(name, "is not in the source")
        left.remove(name)
        if not written[name].agrees(fingerprint(values, sums=not written[name].exact)):
            raise _wrong_file(name, "reads back with other values")
    if left:
        raise _wrong_file(min(left), "is missing")
    return len(written)


def _wrong_file(name: str, problem: str) -> ModelError:
    return ModelError(
        f"the tensor {name} of the result {problem}", code="verification", expected="what was written",
        hint="report this as a bug",
    )  # fmt: skip
