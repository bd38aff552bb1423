# SPDX-License-Identifier: Apache-2.0
"""The table of preprocessing steps: names, order, settings. A step is a function from a view to a view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fewbit.data.loading import augmentation, row_steps, text_steps
from fewbit.data.loading.views import Context, View
from fewbit.data.user_code import parse_reference
from fewbit.errors import nearest


@dataclass(frozen=True)
class PreprocessingStep:
    """One step.

    Args:
        apply: `apply(view, context) -> view`; `None` if it acts when batches are made.
        after: steps that must come before it if they are listed.
        needs: steps that must be listed.
        settings: what it reads of the configuration; names that end in `_` are prefixes.
    """

    apply: Callable[[View, Context], View] | None
    after: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


STEPS = {
    "augmentation": PreprocessingStep(augmentation.augment, settings=("augment_",)),
    "tokenization": PreprocessingStep(
        text_steps.tokenize, ("augmentation",), settings=("add_eos", "chat_template", "cache_tokens")
    ),
    "masking": PreprocessingStep(text_steps.mask, ("tokenization",), ("tokenization",), ("mask_",)),
    "truncation": PreprocessingStep(text_steps.truncate, ("tokenization",), ("tokenization",)),
    "filtering": PreprocessingStep(row_steps.filter_rows, settings=("filter_",)),
    "sampling": PreprocessingStep(row_steps.sample, settings=("sampling_",)),
    "mixing": PreprocessingStep(row_steps.mix, settings=("mixing_",)),
    "packing": PreprocessingStep(
        text_steps.pack, ("tokenization", "truncation", "masking", "filtering", "sampling", "augmentation"),
        settings=("packing_long",),
    ),
    "padding": PreprocessingStep(
        None, ("tokenization", "masking", "truncation", "packing"), settings=("padding", "padding_side")
    ),
    "length_grouping": PreprocessingStep(
        None, ("tokenization", "truncation", "packing", "filtering", "sampling", "mixing"), settings=("grouping_pool",)
    ),
    "rescaling": PreprocessingStep(augmentation.rescale, ("augmentation",), settings=("image_",)),
}  # fmt: skip


def apply_step(name: str, view: View, context: Context) -> View:
    """One step of the table, or a function of the user, on a view."""
    if parse_reference(name) is not None:
        return row_steps.apply_function(view, name, context)
    apply = STEPS[name].apply
    return view if apply is None else apply(view, context)


def step_of_setting(setting: str) -> str | None:
    """The only step that reads a setting; `None` if it is for all.

    >>> step_of_setting("mask_prompt"), step_of_setting("seed")
    ('masking', None)
    """
    for name, step in STEPS.items():
        for prefix in step.settings:
            if setting.startswith(prefix) if prefix.endswith("_") else setting == prefix:
                return name
    return None


def step_problems(steps: Sequence[str]) -> list[str]:
    """What is wrong with a list of steps: unknown names, repeats, order, what is missing."""
    problems = []
    for number, name in enumerate(steps):
        if parse_reference(name) is not None:
            continue
        if name not in STEPS:
            similar = nearest(name, STEPS)
            guess = f"did you mean {' or '.join(map(repr, similar))}?" if similar else f"known: {', '.join(STEPS)}"
            problems.append(f"there is no step {name!r}; {guess}")
            continue
        step, later = STEPS[name], steps[number + 1 :]
        problems += [f"{name!r} is listed twice"] * (name in later)
        problems += [f"{name!r} must come after {other!r}" for other in step.after if other in later]
        problems += [f"{name!r} needs {other!r}" for other in step.needs if other not in steps]
    return problems
