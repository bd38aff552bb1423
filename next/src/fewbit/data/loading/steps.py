# SPDX-License-Identifier: Apache-2.0
"""The table of preprocessing steps: names, order, settings. A step is `apply(view, context) -> view`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fewbit.data.loading import image_steps, row_steps, text_steps
from fewbit.data.loading.views import Context, View
from fewbit.errors import nearest


@dataclass(frozen=True)
class PreprocessingStep:
    """One step.

    Args:
        name: as users write it.
        apply: `apply(view, context) -> view`.
        after: steps that must come before it if they are listed.
        needs: steps that must be listed.
        settings: what it reads of the configuration; names that end in `_` are prefixes.
    """

    name: str
    apply: Callable[[View, Context], View]
    after: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()

    def reads(self, setting: str) -> bool:
        """Whether a setting is this step's."""
        return any(setting.startswith(name) if name.endswith("_") else setting == name for name in self.settings)


def _unchanged(view: View, context: Context) -> View:
    """For steps that act when batches are made."""
    return view


_STEPS = (
    PreprocessingStep("augmentation", image_steps.apply_augmentation, settings=("augment_",)),
    PreprocessingStep(
        "tokenization",
        text_steps.apply_tokenization,
        ("augmentation",),
        settings=("add_eos", "chat_template", "cache_tokens"),
    ),
    PreprocessingStep("masking", text_steps.apply_masking, ("tokenization",), ("tokenization",), ("mask_",)),
    PreprocessingStep("truncation", text_steps.apply_truncation, ("tokenization",), ("tokenization",)),
    PreprocessingStep("filtering", row_steps.apply_filtering, settings=("filter_",)),
    PreprocessingStep("sampling", row_steps.apply_sampling, settings=("sampling_",)),
    PreprocessingStep("mixing", row_steps.apply_mixing, settings=("mixing_",)),
    PreprocessingStep(
        "packing",
        text_steps.apply_packing,
        ("tokenization", "truncation", "masking", "filtering", "sampling", "augmentation"),
        settings=("packing_long",),
    ),
    PreprocessingStep(
        "padding",
        _unchanged,
        ("tokenization", "masking", "truncation", "packing"),
        settings=("padding", "padding_side"),
    ),
    PreprocessingStep(
        "length_grouping",
        _unchanged,
        ("tokenization", "truncation", "packing", "filtering", "sampling", "mixing"),
        settings=("grouping_pool",),
    ),
    PreprocessingStep("rescaling", image_steps.apply_rescaling, ("augmentation",), settings=("image_",)),
)
STEPS = {step.name: step for step in _STEPS}


def is_reference(name: str) -> bool:
    """Whether a name is `FILE.py:FUNCTION`.

    >>> is_reference("steps.py:clean"), is_reference("C:/steps.py:clean"), is_reference("tokenization")
    (True, True, False)
    """
    return re.fullmatch(r".+\.py:\w+", name) is not None


def step_problems(steps: Sequence[str]) -> list[str]:
    """What is wrong with a list of steps: unknown names, repeats, order, what is missing."""
    problems = []
    for number, name in enumerate(steps):
        if is_reference(name):
            continue
        if name not in STEPS:
            similar = nearest(name, STEPS)
            guess = f"did you mean {' or '.join(map(repr, similar))}?" if similar else f"known: {', '.join(STEPS)}"
            problems.append(f"there is no step {name!r}; {guess}")
            continue
        if name in steps[:number]:
            problems.append(f"{name!r} is listed twice")
        problems += [
            f"{name!r} must come after {required!r}"
            for required in STEPS[name].after
            if required in steps[number + 1 :]
        ]
        problems += [f"{name!r} needs {required!r}" for required in STEPS[name].needs if required not in steps]
    return problems
