# SPDX-License-Identifier: Apache-2.0
"""A run that had no room: in which step, with what in memory, and what takes less."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fewbit.errors import FewbitError
from fewbit.tuning.options import Options

_OF_THE_CPU = ("can't allocate memory", "not enough memory", "out of memory")
Doing = Literal["learning", "updating", "judging", "placing"]
_WORDS = {
    "learning": "forward and backward of a batch",
    "updating": "the update of the weights",
    "judging": "an evaluation",
    "placing": "putting the model on the device",
}


class OutOfMemory(FewbitError):
    """There was no room for a step."""


@dataclass(frozen=True)
class Situation:
    """What a run was doing.

    Args:
        device: where.
        options: of the run.
        doing: what of it.
        step: in which step.
        batch: the inputs, if there were any.
        where: which samples these were, in words.
        saved: the step of the last checkpoint; none if there is none.
        writes: whether the run has a folder to go on in.
        cuts: whether batches are cut by the run, and not made by somebody else.
    """

    device: torch.device
    options: Options
    doing: Doing
    step: int
    batch: Mapping[str, Any] | None = None
    where: str | None = None
    saved: int | None = None
    writes: bool = False
    cuts: bool = True


@contextmanager
def explained(situation: Callable[[], Situation]) -> Iterator[None]:
    """Within the block an allocation that fails is told with what was going on and what takes less room.

    Args:
        situation: says what was going on, if that happens.

    Raises:
        OutOfMemory: in the place of what PyTorch raises.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # which would keep the tensors alive
        raise _told(situation(), error) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that there is no room, on an accelerator or in the machine's memory.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
    True
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OF_THE_CPU)


def _told(situation: Situation, error: BaseException) -> OutOfMemory:
    at = f"step {situation.step}, {_WORDS[situation.doing]}"
    of = "" if situation.batch is None else f" of {in_words(situation.batch)}"
    what = f"out of memory in {at}{of}: {str(error).strip().splitlines()[0][:200] if str(error) else 'no room'}"
    most = peak(situation.device)
    return OutOfMemory(
        what,
        where=f"{situation.device}, {situation.where}" if situation.where else situation.device,
        expected="room" if most is None else f"room: at most {most} was in use so far",
        try_=_advice(situation),
    )


def _advice(situation: Situation) -> str:
    options, goes_on, anew = situation.options, [], []
    if situation.doing in ("learning", "judging") and not situation.cuts:
        anew.append(f"smaller batches of the loader with accumulation={2 * options.accumulation}")
    elif situation.doing in ("learning", "judging") and options.batch_size > 1:
        half = options.batch_size // 2
        while options.batch_size % half:
            half -= 1
        times = options.accumulation * options.batch_size // half
        goes_on.append(f"batch_size={half} with accumulation={times}, the same step in smaller parts")
    if situation.doing == "learning" and not options.gradient_checkpointing:
        goes_on.append("gradient_checkpointing=True, which computes activations twice")
    goes_on.append("sharding='fsdp' with torchrun, which parts the model among processes")
    if options.precision in (None, "fp32"):
        anew.append("precision='bf16'")
    if situation.doing != "placing":
        anew.append("method='lora', which learns less")
    if situation.batch is not None and _tokens(situation.batch) is not None:
        anew.append(f"custom_config={{'max_length': {max(1, (_tokens(situation.batch) or 2) // 2)}}}")
    return f"{'; '.join(goes_on)}. {_resumes(situation)} Other runs take less too: {', '.join(anew)}"


def _resumes(situation: Situation) -> str:
    if not situation.writes:
        return "With an output a run can go on after such a stop."
    if situation.saved is None:
        return "The same call with one of these begins again: there is no checkpoint yet."
    return f"The same call with one of these goes on from step {situation.saved}, the last checkpoint."


def in_words(batch: Mapping[str, Any]) -> str:
    """How much a batch is.

    >>> in_words({"input_ids": torch.zeros(2, 5, dtype=torch.long)})
    '2 samples of 5 tokens'
    """
    tensors = [value for value in _values(batch) if isinstance(value, Tensor) and value.ndim]
    count = max((len(tensor) for tensor in tensors), default=0)
    tokens, pixels = _tokens(batch), batch.get("pixel_values")
    if tokens is not None:
        return f"{count} samples of {tokens} tokens"
    if isinstance(pixels, Tensor) and pixels.ndim == 4:
        return f"{len(pixels)} pictures of {pixels.shape[3]} x {pixels.shape[2]}"
    return f"{count} samples"


def peak(device: torch.device) -> str | None:
    """The most memory that was in use on a device so far, and how much it has; none where nobody says."""
    if device.type == "cuda":
        used, there = torch.cuda.max_memory_allocated(device), torch.cuda.get_device_properties(device).total_memory
    elif device.type == "mps":
        used, there = torch.mps.driver_allocated_memory(), torch.mps.recommended_max_memory()
    else:
        try:
            import resource
        except ImportError:  # Windows has it not, nor sysconf
            return None
        unit = 1 if sys.platform == "darwin" else 1024
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{used / 2**30:.2f} of {there / 2**30:.2f} GiB"


def _values(batch: Mapping[str, Any]) -> Iterator[Any]:
    for value in batch.values():
        yield from value if isinstance(value, tuple | list) else (value,)


def _tokens(batch: Mapping[str, Any]) -> int | None:
    ids = batch.get("input_ids")
    return int(ids.shape[1]) if isinstance(ids, Tensor) and ids.ndim == 2 else None
