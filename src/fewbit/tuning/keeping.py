# SPDX-License-Identifier: Apache-2.0
"""What of a run is kept: where it is, checkpoints to go on from, and the weights of the best evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from fewbit.tuning import checkpoints, randomness, state
from fewbit.tuning.checkpoints import Checkpoints
from fewbit.tuning.machine import Machine
from fewbit.tuning.masks import Masks


@dataclass
class Place:
    """Where a run is.

    Args:
        step: how many are done.
        epoch: which pass over the data it is.
        offset: how many steps of it are done.
        best: the best number so far, and the loss with it.
        best_step: in which step it was; the model as it came is one to be beaten.
        waited: evaluations since then.
        judged: the step of the last evaluation.
        done: whether it stopped early.
        seconds: how long it took.
        tokens: how many it has seen.
    """

    step: int = 0
    epoch: int = 0
    offset: int = 0
    best: tuple[float, float] | None = None
    best_step: int | None = None
    waited: int = 0
    judged: int | None = None
    done: bool = False
    seconds: float = 0.0
    tokens: float = 0.0


class Keeper:
    """Keeps a run.

    Args:
        machine: what it runs on; the first process writes.
        model: what learns, as it was before processes shared it.
        optimizer: of its parameters.
        kept: the checkpoints; none to keep the best weights in memory, and nothing else.
        masks: zeros that come on the way, which are in checkpoints; none if there are none.
    """

    def __init__(
        self,
        machine: Machine,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        kept: Checkpoints | None,
        masks: Masks | None,
    ):
        self._machine, self._model, self._optimizer, self._kept, self._masks = machine, model, optimizer, kept, masks
        self._best: dict[str, torch.Tensor] | None = None  # where there is no folder for it

    def keep_best(self, place: Place) -> None:
        """Keep the weights as they are, in the place of the best before."""
        tensors = state.learned(self._model)
        if self._kept is None:
            self._best = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
        elif self._machine.is_first:
            self._kept.save_best(tensors, {"step": place.step, "best": place.best})
        self._machine.wait()

    def return_to_best(self) -> None:
        """Give the model the best weights."""
        tensors = self._best
        if tensors is None:
            assert self._kept is not None
            tensors, _ = checkpoints.read(self._kept.best)
        state.learn(self._model, tensors)

    def save(self, place: Place, more: Mapping[str, Any]) -> None:
        """Write a checkpoint.

        Args:
            place: where the run is.
            more: what else is to be in it, as JSON values.
        """
        assert self._kept is not None
        tensors = state.learned(self._model) | state.moments(self._model, self._optimizer)
        if self._masks is not None:
            tensors |= state.masks(self._masks)
        random_states = self._machine.gather(randomness.take())
        if self._machine.is_first:
            scaler = self._machine.scaler.state_dict()
            found = {"place": asdict(place), "scaler": scaler, "random": random_states, **more}
            self._kept.save(place.step, tensors, found)
        self._machine.wait()

    def put_back(self, tensors: dict[str, torch.Tensor], found: Mapping[str, Any]) -> tuple[Place, str | None]:
        """Give model, optimizer and generators what a checkpoint has.

        Returns:
            Where the run was, and what could not be taken over, in words.
        """
        state.learn(self._model, tensors)
        state.set_moments(self._model, self._optimizer, tensors)
        if self._masks is not None:
            state.set_masks(self._model, self._masks, tensors)
        place = Place(**found["place"])
        place.best = None if place.best is None else (place.best[0], place.best[1])
        if found["scaler"]:
            self._machine.scaler.load_state_dict(found["scaler"])
        were, are = len(found["random"]), self._machine.world
        if were != are:
            return place, f"there were {were} processes and are {are}: dropout is drawn anew"
        randomness.put(found["random"][self._machine.rank])
        return place, None
