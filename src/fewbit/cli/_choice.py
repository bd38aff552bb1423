# SPDX-License-Identifier: Apache-2.0
"""What the commands that quantize have in common: which configuration, and which model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewbit import registry
from fewbit.cli._reference import load_function
from fewbit.errors import UsageError

if TYPE_CHECKING:
    from fewbit.model.view import ModelView

Model = Annotated[
    str, typer.Argument(help="An .onnx file, a Hugging Face folder, a .pt2, a state dict, or file.py:function.")
]
Factory = Annotated[str | None, typer.Option(help="For a state dict: file.py:function that returns the model.")]
Preset = Annotated[str | None, typer.Option(help="A preset; w8a8 when neither this nor --config is given.")]
Configuration = Annotated[Path | None, typer.Option(help="A configuration, .json or .yaml.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="A new folder; for an ONNX model a new file.")]
Target = Annotated[
    str | None, typer.Option(help="Where an ONNX model will run: onnxruntime (if not given), openvino or generic.")
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(help="Leave these layers in float: a name, a glob, re: and an expression, or a type."),
]
Formats = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        help="What to write: safetensors (fewbit's own), compressed-tensors, gptq, awq, gguf; again for more.",
    ),
]
Overwrite = Annotated[bool, typer.Option(help="Replace an earlier result there.")]


def configuration(preset: str | None, config: Path | None) -> Any:
    """The `Config` that `--preset` or `--config` asks for; `w8a8` when neither is given.

    Raises:
        UsageError: both, an unknown preset, a file with faults (all of them).
    """
    from fewbit.schemes.config import Config
    from fewbit.schemes.presets import preset as preset_config

    if preset is not None and config is not None:
        raise UsageError("both --preset and --config were given", expected="one of the two")
    return Config.load(config) if config is not None else preset_config(preset or "w8a8")


def network(model: str, factory: str | None) -> Any:
    """The model that the command line names: opened as a module, or its path where a backend reads it as it is.

    Raises:
        UsageError: nothing there that can be opened, a factory for something that needs none.
        DataError: a file that is damaged, or does not fit the factory's model.
    """
    from fewbit.modules.manifest import is_export
    from fewbit.modules.opening import open_model

    place = Path(model).expanduser()
    as_it_is = any(registry.get("backends", name).accepts(model) for name in registry.names("backends"))
    complete = as_it_is or registry.is_reference(model) or (place.is_dir() and not is_export(place))
    if factory is not None and complete:
        raise UsageError(f"--factory for {model}, which says itself how it is built", where="--factory")
    if as_it_is:
        return model
    reference = model if registry.is_reference(model) else factory
    if reference is not None:
        load_function(reference, returns="the model")
    return open_model(model, factory)


def ignored(view: ModelView, given: Sequence[str] | None) -> tuple[str, ...]:
    """The layers that `--ignore` names: by name, glob or `re:` as they are, and those of a type by its name."""
    layers = view.layers()
    found: list[str] = []
    for text in given or ():
        of_type = [name for name, types in layers.items() if text in types]
        found += of_type if of_type and text not in layers else [text]
    return tuple(dict.fromkeys(found))
