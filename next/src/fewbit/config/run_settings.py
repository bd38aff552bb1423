# SPDX-License-Identifier: Apache-2.0
"""What `--config FILE` and `--set KEY=VALUE` hold: any option of the command, and settings that have no option."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, Strict

from fewbit.config.config import Config
from fewbit.config.spec import AlgorithmName, ObserverName
from fewbit.errors import FewbitError, UsageError, nearest, raise_all
from fewbit.settings import Settings, read_file, set_by_path


class QuantizeSettings(Settings):
    """Settings of `quantize` without an option.

    Args:
        quantization: specs by layer, instead of a preset.
        bias_correction: compensates the shift of each layer's mean: `fast` from statistics, `sequential` by running the
            model; `auto` as the path has it.
        rescale: algorithms that change the float model first, such as `awq`, `smooth_quant` or `equalization`;
            `None` lets the run choose.
        activation_observer: how ranges of activations are computed; `None` lets the run choose.
        exact: let no kernel compute less precisely than the model.
        accuracy_level: of MatMulNBits in ONNX Runtime: 0 computes as the model does, 4 rounds activations to int8.
        activation_budget: bytes of memory for cached activations; what does not fit is stored on disk. `None` for a
            quarter of what is free.
    """

    quantization: Config | None = None
    bias_correction: Literal["auto", "fast", "sequential", "none"] = "auto"
    rescale: (
        Annotated[tuple[AlgorithmName, ...], Strict(False), BeforeValidator(lambda v: [v] if isinstance(v, str) else v)]
        | None
    ) = None
    activation_observer: ObserverName | None = None
    exact: bool = False
    accuracy_level: Annotated[int, Field(ge=0, le=4)] = 0
    activation_budget: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


def read_settings(
    config: str | Path | Mapping[str, Any] | Config | None,
    options: Collection[str],
    assignments: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], QuantizeSettings]:
    """What `config` and `set` say, divided into options of the command, unchecked, and the settings without one.

    Args:
        config: a `.yaml` or `.json` file, its content, or a `Config`.
        options: names of the command's options.
        assignments: values by path, `{"quantization.exclude": "[lm_head]"}`; texts are read as YAML.

    Raises:
        UsageError: everything that is wrong with the settings, unknown names included.

    >>> read_settings({"preset": "w4a16", "accuracy_level": 4}, ["preset", "samples"], {"samples": "64"})
    ({'preset': 'w4a16', 'samples': 64}, QuantizeSettings(accuracy_level=4))
    """
    if isinstance(config, Config):
        values: dict[str, Any] = {"quantization": config}
    else:
        values = dict(read_file(config) if isinstance(config, str | Path) else config or {})
    if values and values.keys() <= Config.model_fields.keys():
        values = {"quantization": values}  # the configuration of layers alone
    for path, value in (assignments or {}).items():
        set_by_path(values, path, _read_scalar(path, value))
    known = [*QuantizeSettings.model_fields, *options]
    errors: list[FewbitError] = [_unknown(name, known) for name in values if name not in known]
    settings = QuantizeSettings()
    try:
        settings = QuantizeSettings(**{name: values[name] for name in values if name in QuantizeSettings.model_fields})
    except FewbitError as error:
        errors.append(error)
    raise_all(errors)
    return {name: value for name, value in values.items() if name in options}, settings


def _read_scalar(path: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise UsageError(
            f"{value!r} for {path} cannot be read as YAML", code="settings-value", param="set",
            expected="a number, a text, true, false or a list", hint="quote the text",
        ) from error  # fmt: skip


def _unknown(name: str, known: Sequence[str]) -> UsageError:
    return UsageError(
        f"unknown setting {name!r}", code="settings-unknown", param="config",
        expected=", ".join(nearest(name, known)) or "an option of the command, or a setting of the documentation",
        hint="correct the name",
    )  # fmt: skip
