# SPDX-License-Identifier: Apache-2.0
"""What a model is trained on: the device, the processes that share the work, the precision; by way of accelerate."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.errors import UsageError, require
from fewbit.tuning.options import Options

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Machine:
    """The processes of a run and their devices.

    Precision is not accelerate's: it casts every output to fp32, logits of a whole vocabulary too, and has no fp16 on
    a CPU.

    Args:
        options: of the run.
        accelerator: accelerate's.

    Attributes:
        precision: what the model computes in.
        rank: which of the processes this is.
        world: how many there are.
    """

    def __init__(self, options: Options, accelerator: Any):
        self.accelerator = accelerator
        self.device: torch.device = accelerator.device
        self.rank, self.world = int(accelerator.process_index), int(accelerator.num_processes)
        self.is_first: bool = self.rank == 0
        self.precision = options.precision or usual_precision(self.device)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")

    def autocast(self) -> AbstractContextManager[Any]:
        """Within the block operations compute in the precision of the run."""
        dtype = _DTYPES.get(self.precision)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    def wrap(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
        """The model as the processes share it; the optimizer is changed where they share its parameters too."""
        if self.shares_parameters:
            with _asked_for_embeddings(model):
                model, _ = self.accelerator.prepare(model, optimizer)
            return model
        prepared: nn.Module = self.accelerator.prepare_model(model)
        return prepared

    @property
    def shares_parameters(self) -> bool:
        """Whether each process has a part of the parameters only."""
        return bool(self.accelerator.is_fsdp2)

    def unsynchronized(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Within the block gradients stay with their process."""
        context: AbstractContextManager[Any] = self.accelerator.no_sync(model)
        return context

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes; nothing waits for it."""
        if self.world > 1:
            torch.distributed.all_reduce(values)
        return values

    def gather(self, value: Any) -> list[Any]:
        """What each process has, in their order."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(found, value)
        return found

    def wait(self) -> None:
        """Until all processes are here."""
        self.accelerator.wait_for_everyone()


@contextmanager
def started(options: Options) -> Iterator[Machine]:
    """The machine of a run. Nothing of accelerate's is left behind that was not there before.

    Raises:
        UsageError: a device that there is not, sharding without processes to share.
    """
    accelerate = require("accelerate", extra="tune", purpose="training a model")
    state = accelerate.state
    fresh = not state.PartialState._shared_state
    try:
        yield Machine(options, _accelerator(accelerate, options))
    finally:
        if fresh:
            state.AcceleratorState._reset_state(True)


@contextmanager
def _asked_for_embeddings(model: nn.Module) -> Iterator[None]:
    """Within the block a model without embeddings says so: those of transformers that see raise instead."""
    asked: Any = getattr(model, "get_input_embeddings", None)
    try:
        if asked is not None:
            asked()
    except (NotImplementedError, AttributeError):
        model.__dict__["get_input_embeddings"] = lambda: None
    try:
        yield
    finally:
        model.__dict__.pop("get_input_embeddings", None)


def usual_precision(device: torch.device) -> str:
    """What is computed in where nobody says: bf16 on a GPU that has it."""
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"


def _accelerator(accelerate: Any, options: Options) -> Any:
    device = None if options.device is None else torch.device(options.device)
    # Where there is no accelerator, accelerate has to be told so: else each of several processes would train alone.
    on_cpu = device.type == "cpu" if device is not None else not torch.accelerator.is_available()
    more: dict[str, Any] = {"cpu": True} if on_cpu else {}
    if options.sharding == "fsdp":
        if int(os.environ.get("WORLD_SIZE", "1")) < 2:
            raise UsageError(
                "sharding='fsdp' with one process", expected="two or more", try_="torchrun --nproc-per-node 2 …"
            )
        more["fsdp_plugin"] = accelerate.FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=False)
    made = accelerate.Accelerator(
        mixed_precision="no",
        step_scheduler_with_optimizer=False,
        kwargs_handlers=[accelerate.DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
        **more,
    )
    if options.sharding == "fsdp" and not made.is_fsdp2:
        # accelerate hears of it on accelerators alone; PyTorch shares parameters among CPUs as well.
        made.state._shared_state["distributed_type"] = accelerate.DistributedType.FSDP
        made.state._shared_state["fsdp_plugin"] = more["fsdp_plugin"]
    if device is not None and made.device.type != device.type:
        raise UsageError(f"device={options.device!r} is not here", where="options", expected=f"'{made.device.type}'")
    return made
