# SPDX-License-Identifier: Apache-2.0
"""The further options of `sparsify`, by what they are about, with every fault at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fewbit import registry
from fewbit.data.keys import GENERAL, Key, faults, is_count, is_flag, optional
from fewbit.errors import UsageError
from fewbit.sparsity.modes import TRAINED
from fewbit.tuning.options import Options

_LEFT_OUT = ("path", "task", "batch_size", "seed", "workers", "drop_last", "require_device", "shuffle")
"""Keys of a dataset's configuration that are said otherwise here."""

OWN = (
    Key("train_samples", None, "a whole number from 1 up", optional(is_count), "of the data to learn from, at most"),
    Key("val_samples", None, "a whole number from 1 up", optional(is_count), "of the data to judge by, at most"),
    Key("batch_size", None, "a whole number from 1 up", optional(is_count), "samples that are run at a time"),
    Key("seqlen", 512, "a whole number from 1 up", is_count, "the most tokens of a calibration sample"),
    Key("pack", None, "'concatenate' or 'pad'", optional(lambda v: v in ("concatenate", "pad")), "rows as samples"),
    Key("text_column", None, "a column's name", lambda v: v is None or isinstance(v, str), "that holds the text"),
    Key("compact", True, "true or false", is_flag, "whether zeros are left out of files; else they are as others read"),
    Key("device", None, "'cpu', 'cuda' …", lambda v: v is None or isinstance(v, str), "where it runs"),
    Key("seed", 0, "a whole number", lambda v: isinstance(v, int) and not isinstance(v, bool), "of what is drawn"),
)

_STAGE = (
    Key("new_head", False, "true or false", is_flag, "whether the head starts anew, for the classes of the data"),
)
"""What the stage `train` takes beside the settings of `finetune`, and a user may want without a recipe."""


@dataclass(frozen=True)
class Said:
    """What a user says besides, sorted.

    Args:
        own: about samples and calibration.
        data: keys of a dataset's configuration.
        training: settings of `finetune`.
    """

    own: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, given: Mapping[str, Any], mode: str) -> Said:
        """Options by name.

        Raises:
            UsageError: names that there are not and values that cannot be, all of them; settings of training for a
                mode that trains nothing.

        >>> Said.read({"seqlen": 128, "lr": 1e-3}, "training-aware").training
        {'lr': 0.001}
        """
        data, training = _data_keys(), {key.name: key for key in (*Options.known(), *_STAGE)}
        known = training | data | {key.name: key for key in OWN}
        wrong = faults(given, known.values())
        own = {key.name for key in OWN}
        idle = [name for name in given if name in training and name not in own | data.keys() and mode not in TRAINED]
        wrong += [f"{name}: {mode} trains nothing; expected {' or '.join(TRAINED)} with it" for name in idle]
        if wrong:
            raise UsageError("; ".join(wrong), where="options", expected="settings of sparsify, data or training")
        return cls(
            {key.name: given.get(key.name, key.default) for key in OWN},
            {name: value for name, value in given.items() if name in data and value is not None},
            {name: given[name] for name in training if name in given and name not in data and _of_recipe(name, mode)},
        )


def _of_recipe(name: str, mode: str) -> bool:
    """Whether a setting of training belongs into a recipe: it does not say on which machine it is carried out."""
    return mode in TRAINED and name not in ("device", "workers")


def _data_keys() -> dict[str, Key]:
    """Keys about data: those of every configuration, of rows of one's own, and of pictures."""
    keys = [key for key in GENERAL if key.name not in _LEFT_OUT]
    keys += registry.get("presets", "custom_dataset").KEYS
    keys += registry.get("steps", "rescaling").KEYS
    return {key.name: key for key in keys}
