# SPDX-License-Identifier: Apache-2.0
"""`Recipe`: what is done to a model, step by step, as plain YAML.

    version: 1
    mode: one-shot
    stages:
    - prune: {sparsity: 0.5, structure: '2:4'}
    - quantize: {preset: w8a8}

Values are values: nothing is computed from them, so a text such as `calc(...)` is refused. The keys of a stage are the
fields of its `Settings` (`fewbit list stages`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

from fewbit import registry
from fewbit.data.keys import is_count
from fewbit.data.near_paths import near_paths
from fewbit.errors import UsageError, nearest
from fewbit.schemes.faults import Fault, refuse
from fewbit.schemes.text import canonical, read_json, read_yaml, write_yaml
from fewbit.sparsity.modes import MODES, TRAINED, fault_of_mode
from fewbit.sparsity.settings import expressions, read_settings, written

VERSION = 1
SAMPLING = {
    "samples": ("a whole number from 1 up", is_count),
    "seqlen": ("a whole number from 1 up", is_count),
    "pack": ("'concatenate' or 'pad'", lambda value: value in ("concatenate", "pad")),
}
"""What was looked at, on which the model depends as much as on the settings of stages."""
_KEYS = ("version", "mode", "use_case", *SAMPLING, "stages")
_ON_FLOATS = ("prune", "shrink", "train", "quantize")
"""Stages that take a model of floats; they run in the order of the recipe, and none after codes are made."""


@dataclass(frozen=True)
class Recipe:
    """What is done to a model. It cannot be changed.

    Args:
        stages: pairs of a stage's name and its settings, in order.
        mode: `one-shot`, `training-aware` or `sparse-transfer`.
        use_case: what the model is for; found by looking if none.
        samples: how many samples are looked at; what the call says, or 128, if none.
        seqlen: the most tokens of one that is a text; what the call says, or 512, if none.
        pack: how texts become samples: `concatenate` or `pad`; what the call says, or what is usual, if none.

    >>> recipe = Recipe.from_yaml("version: 1\\nstages: [{quantize: {preset: w8a8_dynamic}}]")
    >>> recipe.mode, recipe.stages[0][0], Recipe.from_yaml(recipe.to_yaml()) == recipe
    ('one-shot', 'quantize', True)
    """

    stages: tuple[tuple[str, Any], ...] = ()
    mode: str = MODES[0]
    use_case: str | None = None
    samples: int | None = None
    seqlen: int | None = None
    pack: str | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """A recipe from plain values.

        Raises:
            UsageError: everything that is wrong with it, each with what was probably meant.
        """
        faults = _top_faults(values)
        faults += expressions(values)
        stages: list[tuple[str, Any]] = []
        given = values.get("stages")
        for number, each in enumerate(given if isinstance(given, list) else []):
            stages += _stage(each, f"stages[{number}]", faults)
        faults += _order_faults(stages)
        trains = any(name == "train" for name, _ in stages)
        mode = values.get("mode", MODES[1] if trains else MODES[0])
        if trains and mode == MODES[0]:
            faults.append(Fault("mode", f"{mode} with the stage train", " or ".join(TRAINED)))
        refuse(faults, "the recipe")
        sampling = {name: values.get(name) for name in SAMPLING}
        return cls(tuple(stages), mode, values.get("use_case"), **sampling)

    @classmethod
    def from_yaml(cls, text: str | bytes) -> Self:
        """The inverse of `to_yaml`; the safe loader only, a key that is there twice is refused."""
        return cls.from_dict(read_yaml(text))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The recipe in a `.yaml` or `.json` file.

        Raises:
            UsageError: no such file, or faults in it.
        """
        place = Path(path).expanduser()
        if not place.is_file():
            raise UsageError(
                f"there is no file {str(path)!r}", where="recipe", expected="a recipe, .yaml", try_=near_paths(path)
            )
        try:
            text = place.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise UsageError(f"the file is no text: {error}", where=place, expected="a recipe, .yaml") from error
        try:
            values = read_json(text) if place.suffix.lower() == ".json" else read_yaml(text)
        except UsageError as error:
            plain = "a recipe, as `fewbit sparsify one-shot --show-recipe` prints it"
            raise UsageError(error.what, where=place, expected=plain, try_=error.try_) from error
        try:
            return cls.from_dict(values)
        except UsageError as error:
            where = f"{place}, {error.where}" if error.where else place
            raise UsageError(error.what, where=where, expected=error.expected, try_=error.try_) from error

    def to_dict(self) -> dict[str, Any]:
        """Plain values, complete: settings that are left at their defaults are said too, unless they are nothing."""
        head: dict[str, Any] = {"version": VERSION, "mode": self.mode}
        if self.use_case is not None:
            head["use_case"] = self.use_case
        head |= {name: value for name in SAMPLING if (value := getattr(self, name)) is not None}
        return head | {"stages": [{name: written(settings)} for name, settings in self.stages]}

    def to_yaml(self) -> str:
        """As YAML."""
        return write_yaml(self.to_dict())

    @property
    def fingerprint(self) -> str:
        """A digest of the content: the same for equal recipes, however they are written."""
        return blake2b(canonical(self.to_dict()), digest_size=16).hexdigest()

    def __str__(self) -> str:
        return self.to_yaml()


def _top_faults(values: Mapping[str, Any]) -> list[Fault]:
    found = [_no_key(name, values) for name in values if name not in _KEYS]
    if values.get("version", VERSION) != VERSION or isinstance(values.get("version"), bool):
        found.append(Fault("version", f"version {values['version']!r}", f"{VERSION}, which this fewbit reads"))
    found += fault_of_mode(values.get("mode", MODES[0]))
    use_case = values.get("use_case")
    if use_case is not None and not isinstance(use_case, str):
        found.append(Fault("use_case", f"{use_case!r}", "a name of `fewbit list use_cases`, or file.py:function"))
    for name, (expected, good) in SAMPLING.items():
        if (value := values.get(name)) is not None and not good(value):
            found.append(Fault(name, f"{value!r}"[:200], expected))
    if not isinstance(values.get("stages"), list):
        found.append(Fault("stages", f"{values.get('stages')!r}", "a list such as [{prune: {sparsity: 0.5}}]"))
    return found


def _no_key(name: Any, values: Mapping[str, Any]) -> Fault:
    if "modifiers" in str(name) or any("modifiers" in str(each) for each in values):
        hint = "this is a recipe of SparseML; its pruning modifiers are the stages `prune` and `train` here"
        return Fault(str(name), "no such key", ", ".join(_KEYS), hint)
    return Fault(str(name), "no such key", nearest(str(name), _KEYS))


def _stage(given: Any, path: str, faults: list[Fault]) -> list[tuple[str, Any]]:
    """One stage of a recipe, if nothing is wrong with it."""
    if not isinstance(given, Mapping) or len(given) != 1:
        faults.append(
            Fault(path, f"{given!r}"[:200], "one stage with its settings, such as {quantize: {preset: w8a8}}")
        )
        return []
    ((name, values),) = given.items()
    known = registry.names("stages")
    if name not in known:
        faults.append(Fault(path, f"there is no stage {name!r}", nearest(str(name), known)))
        return []
    values = {} if values is None else values
    if not isinstance(values, Mapping):
        faults.append(Fault(f"{path}.{name}", f"{values!r}"[:200], "settings by name"))
        return []
    found, wrong = read_settings(registry.get("stages", name).Settings, values)
    faults += [fault.under(f"{path}.{name}") for fault in wrong]
    return [] if wrong else [(name, found)]


def _order_faults(stages: list[tuple[str, Any]]) -> list[Fault]:
    """Stages for floats after one that makes codes: they would find it out when the work before them is done."""
    for number, (name, settings) in enumerate(stages):
        after = [other for other, _ in stages[number + 1 :] if other in _ON_FLOATS]
        if after and (name == "quantize" or getattr(settings, "quantize", None) is not None):
            said = name if name == "quantize" else f"{name} with quantize"
            return [Fault("stages", f"{after[0]} after {said}", "what makes codes as the last stage, once")]
    return []
