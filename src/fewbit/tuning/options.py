# SPDX-License-Identifier: Apache-2.0
"""Every setting of a training run, read with all faults at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from fewbit.data.keys import Key, faults, is_count
from fewbit.errors import UsageError
from fewbit.tuning.schedules import SCHEDULES

PRECISIONS = ("fp32", "bf16", "fp16")

FREE = (
    "workers", "log_every", "save_every", "keep", "tensorboard", "sharding", "device", "gradient_checkpointing",
)  # fmt: skip
"""What may be another when a run is resumed: none of these changes what is learned."""


def _is_number(value: Any, least: float, most: float = float("inf")) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _key(default: Any, expected: str, fits: Any) -> Any:
    return field(default=default, metadata={"expected": expected, "fits": fits})


def _count(default: int | None, *, least: int = 1) -> Any:
    """A whole number; none allowed where that is the default."""
    words = f"a whole number from {least} up" + (", or none" if default is None else "")

    def fits(value: Any) -> bool:
        zero = least == 0 and value == 0 and not isinstance(value, bool)
        return (value is None and default is None) or is_count(value) or zero

    return _key(default, words, fits)


def _at_least(default: float, least: float, words: str, most: float = float("inf")) -> Any:
    return _key(default, words, lambda value: _is_number(value, least, most))


def _one_of(default: str | None, names: tuple[str, ...]) -> Any:
    words = " or ".join(map(repr, names)) + (", or none" if default is None else "")
    return _key(default, words, lambda value: value in names or (value is None and default is None))


def _switch(default: bool) -> Any:
    return _key(default, "True or False", lambda value: isinstance(value, bool))


@dataclass(frozen=True)
class Options:
    """How a model is trained.

    A step takes `batch_size × accumulation` samples, however many processes share them: more of them change how long a
    run takes and not what it learns.

    Args:
        epochs: passes over the data; parts of one allowed.
        max_steps: steps, instead of epochs.
        batch_size: samples that a process runs at a time.
        accumulation: so many batches make a step. The loss of a step is the mean over all its tokens, whichever batch
            they are in.
        lr: the highest learning rate.
        schedule: how the learning rate goes: `constant`, `linear` or `cosine`, down to nothing.
        warmup: steps until it is at its highest; below 1 a share of all.
        weight_decay: of matrices; vectors have none.
        betas: of AdamW.
        eps: of AdamW.
        clip: the most the norm of the gradients of a step may be; none for no limit.
        precision: what the model computes in; weights are learned in fp32 anyway. If not said, bf16 where the
            accelerator has it, else fp32.
        gradient_checkpointing: compute activations a second time instead of keeping them.
        seed: of order, dropout, and everything else that is drawn.
        shuffle: another order each epoch.
        eval_every: steps from one evaluation to the next; once an epoch if not said.
        eval_batches: of the validation data at most so many batches; all if not said.
        patience: stop after so many evaluations that brought nothing better.
        keep_best: return the weights of the best evaluation, and not the last ones.
        judge_by: the number that says which evaluation is the best, such as `loss`; the task's own if not said.
        save_every: steps from one checkpoint to the next; one an epoch if not said.
        keep: how many checkpoints stay.
        log_every: steps whose numbers are fetched from the accelerator at once.
        workers: threads or processes that prepare batches; measured if not said.
        tensorboard: write for TensorBoard too; if not said, where it is installed.
        sharding: more than one process: `ddp`, each has the whole model; `fsdp`, each a part.
        device: where it is trained; if not said, an accelerator where there is one.
        temperature: of distillation.
        distill_weight: how much of the loss is distillation, where there is a teacher; the rest is the task's.
        hidden_weight: how much hidden states count beside logits; 0 leaves them out.
        rank: of LoRA.
        alpha: of LoRA; the update is multiplied by `alpha / rank`.
        dropout: of LoRA.
        targets: of LoRA, which layers, by the ends of their names; if not said, all linear ones but the head.
        merge: of LoRA, put the update into the weights at the end.
        learn_scales: of a quantized model, learn its scales too.
        preset: of `qat`, what a float model becomes first: a preset's name or a `Config`.
        hold_zeros: weights of a matrix that are exactly zero stay so; of codes, if they stand out of those rounded.

    >>> Options.read({"lr": 1e-3, "max_steps": 10}).max_steps
    10
    """

    epochs: float = _at_least(1.0, 1e-9, "a number above 0")
    max_steps: int | None = _count(None)
    batch_size: int = _count(8)
    accumulation: int = _count(1)
    lr: float = _at_least(5e-5, 0, "a number from 0 up")
    schedule: str = _one_of("cosine", tuple(SCHEDULES))
    warmup: float = _at_least(0.03, 0, "a number of steps, or a share below 1")
    weight_decay: float = _at_least(0.0, 0, "a number from 0 up")
    betas: tuple[float, float] = _key(
        (0.9, 0.999),
        "two numbers from 0 to 1",
        lambda value: isinstance(value, tuple | list) and len(value) == 2 and all(_is_number(x, 0, 1) for x in value),
    )
    eps: float = _at_least(1e-8, 0, "a number from 0 up")
    clip: float | None = _key(
        1.0, "a number above 0, or none", lambda value: value is None or (_is_number(value, 0) and value > 0)
    )
    precision: str | None = _one_of(None, PRECISIONS)
    gradient_checkpointing: bool = _switch(False)
    seed: int = _key(0, "a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool))
    shuffle: bool = _switch(True)
    eval_every: int | None = _count(None)
    eval_batches: int | None = _count(None)
    patience: int | None = _count(None)
    keep_best: bool = _switch(True)
    judge_by: str | None = _key(None, "a number of the task, or none", lambda v: v is None or isinstance(v, str))
    save_every: int | None = _count(None)
    keep: int = _count(1)
    log_every: int = _count(10)
    workers: int | None = _count(None, least=0)
    tensorboard: bool | None = _key(None, "True, False or none", lambda value: value is None or isinstance(value, bool))
    sharding: str = _one_of("ddp", ("ddp", "fsdp"))
    device: str | None = _key(None, "'cpu', 'cuda' …, or none", lambda value: value is None or isinstance(value, str))
    temperature: float = _at_least(2.0, 1e-6, "a number above 0")
    distill_weight: float = _at_least(0.5, 0, "a number from 0 to 1", 1)
    hidden_weight: float = _at_least(0.0, 0, "a number from 0 up")
    rank: int = _count(16)
    alpha: float = _at_least(32.0, 0, "a number from 0 up")
    dropout: float = _at_least(0.0, 0, "a number from 0 to 1", 1)
    targets: tuple[str, ...] | None = _key(
        None,
        "a list of names of layers, such as ['q_proj'], or none",
        lambda value: value is None or (isinstance(value, tuple | list) and all(isinstance(x, str) for x in value)),
    )
    merge: bool = _switch(True)
    learn_scales: bool = _switch(False)
    preset: Any = _key(None, "a preset's name, a Config, or none", lambda value: True)
    hold_zeros: bool = _switch(True)

    @classmethod
    def known(cls) -> list[Key]:
        """Every setting, as a key with what it may be."""
        return [Key(each.name, each.default, each.metadata["expected"], each.metadata["fits"]) for each in fields(cls)]

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Options:
        """Options from what a user says.

        Raises:
            UsageError: names that there are not and values that cannot be, all of them.
        """
        found = faults(given, cls.known())
        if {"epochs", "max_steps"} <= given.keys() and None not in (given["epochs"], given["max_steps"]):
            found += [f"epochs={given['epochs']!r} and max_steps={given['max_steps']!r}: expected one of the two"]
        if found:
            raise UsageError("; ".join(found), where="options", expected="settings of fewbit.tuning.options.Options")
        values: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in given.items()}
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values["preset"] = self.preset.to_dict() if hasattr(self.preset, "to_dict") else self.preset
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def what_matters(self) -> dict[str, Any]:
        """The settings that decide what is learned: a run is resumed with the same ones only.

        Into how many batches a step is cut does not: their losses add up to that of the step.

        >>> Options(batch_size=8).what_matters() == Options(batch_size=4, accumulation=2).what_matters()
        True
        """
        cut = ("batch_size", "accumulation")
        values = {name: value for name, value in self.to_dict().items() if name not in (*FREE, *cut)}
        return values | {" × ".join(cut): self.batch_size * self.accumulation}
