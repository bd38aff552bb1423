# SPDX-License-Identifier: Apache-2.0
"""`fewbit sparsify`: a model and data in, a model with zeros in it out, ready to be deployed."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from fewbit.cli import _choice, _data, _output, _sparse_summary
from fewbit.cli._going_on import told_how_to_go_on
from fewbit.cli._sparse_words import in_words_of_sparsify
from fewbit.errors import CalibrationWarning, UsageError

Mode = Annotated[
    str, typer.Argument(help="one-shot: a few samples; training-aware; sparse-transfer: other data, the zeros stay.")
]
Level = Annotated[
    str | None, typer.Option(help="0 (unchanged) to 1, or 2 to 100 percent; 0.5 if not given. --show-recipe tells.")
]


def command(
    context: typer.Context,
    mode: Mode,
    model: Annotated[
        str | None,
        typer.Option(help="An .onnx file, a Hugging Face folder, a state dict, or file.py:function."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Pictures in folders, .npz samples, YOLO's layout, rows of JSON or CSV, file.py:fn."),
    ] = None,
    use_case: Annotated[
        str | None, typer.Option(help="What the model is for: `fewbit list use_cases`, or file.py:function.")
    ] = None,
    optim_level: Level = None,
    recipe: Annotated[Path | None, typer.Option(help="A recipe, .yaml, instead of a level.")] = None,
    show_recipe: Annotated[bool, typer.Option("--show-recipe", help="Print the recipe and do nothing else.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A new folder; NAME-MODE beside you if not given.")
    ] = None,
    eval_metric: Annotated[
        str | None, typer.Option(help="The number to judge by: accuracy, mAP, f1 …; the use case's if not given.")
    ] = None,
    validation: Annotated[str | None, typer.Option(help="Data to judge by, if not kept aside.")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="How many samples one-shot looks at; those of the recipe, or 128.")
    ] = None,
    train_samples: Annotated[int | None, typer.Option(min=1, help="At most so many to learn from.")] = None,
    val_samples: Annotated[int | None, typer.Option(min=1, help="At most so many to judge by.")] = None,
    teacher: Annotated[
        str | None,
        typer.Option(help="Of training: a model to learn from; the model itself if not given; off for none."),
    ] = None,
    policy: _data.Policies = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="name=value of any other setting, such as epochs=3 or image_size=224; again for more."),
    ] = None,
    factory: _choice.Factory = None,
    json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> int:
    """Make a model sparse, and smaller in bits, and write what is needed to deploy it.

    The folder has `deployment/` with the model, its recipe, preprocessing, labels and samples, `record.json` with what
    was gained and lost, and `recipe.yaml`, which makes the same model again. Data, model and settings are checked
    before the work starts. A line that was stopped goes on from what is finished when it is run again.

    Examples:

        fewbit sparsify one-shot --model fewbit-demo/model.onnx --data fewbit-demo/npz -o fewbit-demo/sparse

        fewbit sparsify training-aware --optim-level 0.8 --show-recipe

    """
    from fewbit.sparsity.output_folder import before, leave
    from fewbit.sparsity.verb import sparsify

    level = 0.5 if optim_level is None else _level(optim_level)
    if recipe is not None and optim_level is not None:
        raise UsageError("--recipe and --optim-level", where="--recipe", expected="one of the two")
    _refuse_mode(mode)
    if show_recipe:
        with in_words_of_sparsify():
            return _show(_recipe(recipe, mode, level, use_case, teacher), as_json=json)
    missing = [flag for flag, value in (("--model", model), ("--data", data)) if value is None]
    if model is None or data is None:
        raise UsageError(f"{' and '.join(missing)} not given", expected=f"{' … '.join(missing)} …")
    limits = {"train_samples": train_samples, "val_samples": val_samples}
    given: dict[str, Any] = {name: value for name, value in limits.items() if value is not None}
    folder = out or Path(f"{_stem(model)}-{mode}")
    was = before(folder)
    with (
        _output.TerminalProgress() as progress,
        warnings.catch_warnings(),
        told_how_to_go_on(context, lambda: leave(folder, was)),
        in_words_of_sparsify(),
    ):
        warnings.simplefilter("ignore", CalibrationWarning)  # the summary begins with them
        sparsify(
            model,
            data,
            mode=mode,
            use_case=use_case,
            optim_level=level,
            recipe=recipe,
            output=folder,
            teacher=teacher,
            validation=validation,
            eval_metric=eval_metric,
            samples=samples,
            factory=factory,
            progress=progress,
            **given,
            **_data.with_policies(_output.parse_options(option or ()), policy),
        )
    return _sparse_summary.tell(folder, as_json=json)


def _level(text: str) -> Any:
    """A level as it is written: whole numbers stay whole, so that 50 is percents; what is no number stays as it is."""
    try:
        return int(text) if text.strip().isdecimal() else float(text)
    except ValueError:
        return text


def _refuse_mode(mode: str) -> None:
    from fewbit.sparsity.modes import fault_of_mode

    for fault in fault_of_mode(mode):
        raise UsageError(
            fault.found, where="MODE", expected=fault.expected, try_="fewbit sparsify one-shot --model … --data …"
        )


def _recipe(path: Path | None, mode: str, level: Any, use_case: str | None, teacher: str | None) -> Any:
    """The recipe of the line."""
    from fewbit.sparsity.levels import recipe_for
    from fewbit.sparsity.recipe import Recipe

    if path is not None:
        found = Recipe.load(path)
        if found.mode != mode:
            raise UsageError(
                f"mode {mode}, and the recipe is for {found.mode}",
                where="MODE",
                expected=f"fewbit sparsify {found.mode} …",
            )
        return found
    return recipe_for(mode, level, use_case=use_case, teacher=teacher not in (None, "off"))


def _show(recipe: Any, *, as_json: bool) -> int:
    if as_json:
        _output.print_json(recipe.to_dict())
    else:
        _output.stdout().print(recipe.to_yaml().rstrip(), markup=False)
    return 0


def _stem(model: str) -> str:
    from fewbit import registry

    return model.rpartition(":")[2] if registry.is_reference(model) else Path(model).expanduser().stem
