# SPDX-License-Identifier: Apache-2.0
"""When an option has no effect: it is refused, never swallowed; on the command line and in Python by the same table."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from fewbit.errors import UsageError
from fewbit.options import OPTIONS, Option, options_of

NOT_BUILT = {
    "check": {"workers"},
    "capture": {"workers", "factory"},
    "compare": {"workers", "factory"},
    "quantize": {
        "workers", "factory", "bits", "backup_precision", "kv_cache", "favor", "statistics", "max_drop", "metric",
    },
    "plan": {
        "factory", "input_shape", "bits", "backup_precision", "kv_cache", "favor", "method", "optim_level", "sparsity",
        "pattern",
    },
}  # fmt: skip
"""Options that a command will take and does not take yet: not shown, and refused with the version that brings them."""
_MEASURING = ("Model", "Data", "Images", "Text")
NOT_BUILT["export"] = {option.name for option in options_of("export") if option.group in _MEASURING}
COMING = "1.0"


@dataclass(frozen=True, slots=True)
class Rule:
    """When options have no effect: unless one of `needs` is given, or if one of `without` is."""

    commands: tuple[str, ...]
    options: tuple[str, ...]
    needs: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


def _in_groups(*groups: str) -> tuple[str, ...]:
    return tuple(option.name for option in OPTIONS if option.group in groups)


_IMAGE_OPTIONS = _in_groups("Images")
_READING = next(option.commands for option in OPTIONS if option.name == "transform")
_PREPARING = (*_IMAGE_OPTIONS, "max_length", "pack")
RULES = (
    Rule(("check",), ("output", "overwrite"), needs=("fix",)),
    Rule(("check",), ("model", "quick", "purpose", "samples"), without=("fix",)),
    Rule(("check",), ("transform", *_IMAGE_OPTIONS, "pack"), needs=("model",)),
    Rule(("check",), ("max_length",), needs=("model", "purpose")),
    Rule(("check",), ("seed",), needs=("samples", "purpose")),
    Rule(("quantize",), tuple(set(_in_groups("Data", "Images", "Text")) - {"data", "validation"}),
         needs=("data", "validation")),
    Rule(_READING, _PREPARING, without=("transform",)),
)  # fmt: skip
"""An option that a call does not use is an error, never silence."""


def shown_options(command: str) -> list[Option]:
    """Those that work today: what help and completion show."""
    return [option for option in options_of(command) if option.name not in NOT_BUILT.get(command, ())]


def unused(command: str, given: Collection[str]) -> list[UsageError]:
    """One error for each reason why options that were given would have no effect.

    Args:
        command: which one.
        given: names of the options whose value is not the default.

    >>> unused("check", {"mean", "std"})[0].what, unused("check", {"mean", "std", "model"})
    ('{mean} and {std} have no effect without {model}', [])
    """
    errors = []
    for name in sorted(NOT_BUILT.get(command, set()) & set(given)):
        hint = f"remove {{{name}}}; it comes with fewbit {COMING}"
        errors.append(UsageError(f"{command} has no {{{name}}} yet", code="option-later", param=name, hint=hint))
    for rule in RULES:
        names = [option.name for option in OPTIONS if option.name in rule.options and option.name in given]
        excluded = [name for name in rule.without if name in given]
        missing = rule.needs if not set(rule.needs) & set(given) else ()
        if command in rule.commands and names and (excluded or missing):
            subject = " and ".join(f"{{{name}}}" for name in names)
            reason = f"with {{{excluded[0]}}}" if excluded else f"without {' or '.join(f'{{{n}}}' for n in missing)}"
            what = f"{subject} {'has' if len(names) == 1 else 'have'} no effect {reason}"
            hint = (
                f"remove {subject} or {{{excluded[0]}}}" if excluded else f"add {{{missing[0]}}}, or remove {subject}"
            )
            errors.append(UsageError(what, code="option-unused", param=names[0], hint=hint))
    return errors
