# SPDX-License-Identifier: Apache-2.0
"""`fewbit quantize`: a model and a folder of data in, a smaller model out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewbit import registry
from fewbit.cli import _choice, _data, _output, _summary, _texts
from fewbit.errors import UsageError

if TYPE_CHECKING:
    from fewbit.data.dataset import Dataset


def command(
    model: Annotated[str, typer.Argument(help="A Hugging Face folder, a .pt2, a state dict, or file.py:function.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder for the quantized model.")],
    data: Annotated[
        str | None, typer.Option(help="Calibration data: a path, or file.py:name that is or returns it.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="A preset; w8a8 when neither this nor --config is given.")] = None,
    config: Annotated[Path | None, typer.Option(help="A configuration, .json or .yaml.")] = None,
    factory: Annotated[
        str | None, typer.Option(help="For a state dict: file.py:function that returns the model.")
    ] = None,
    transform: Annotated[str | None, typer.Option(help="Makes a row a model input, as file.py:function.")] = None,
    format: _data.Format = None,
    policy: _data.Policies = None,
    option: _data.Options = None,
    samples: Annotated[int, typer.Option(min=1, help="Read at most so many samples.")] = 300,
    batch_size: Annotated[int, typer.Option(min=1, help="How many samples to run at a time.")] = 1,
    text_column: Annotated[str | None, typer.Option(help="The column of a row that holds the text.")] = None,
    max_length: Annotated[int, typer.Option(min=1, help="The most tokens of a text.")] = 512,
    freeze: Annotated[bool, typer.Option(help="Choose kernels, so that the record says what runs here.")] = True,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier export in the folder.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> int:
    """Quantize a model and write it, with the record of what became of each layer.

    Texts are tokenized by the tokenizer in the model's folder. Output folder, configuration, model and the first sample
    are checked before the work starts; an interrupted run leaves nothing. `fewbit.load` reads what is written.

    Examples:

        fewbit quantize fewbit-demo/model.py:build --preset w4a16 -o fewbit-demo/w4a16

        fewbit quantize fewbit-demo/model.py:build --data fewbit-demo/npz -o fewbit-demo/w8a8 --json
    """
    from fewbit.engine.delivering import check_target, export
    from fewbit.engine.quantizer import ModelQuantizer

    check_target(out, overwrite=overwrite)
    of_data = {"transform": transform, "text-column": text_column, "format": format, "policy": policy, "option": option}
    for name, given in of_data.items():
        if data is None and given:
            raise UsageError(f"--{name} and no data", where=f"--{name}", expected="--data beside it")
    quantizer = ModelQuantizer(_choice.configuration(preset, config))
    dataset = None
    if data is not None:
        dataset = _data.open_data(data, transform, format=format, policies=policy, options=option)
    network = _choice.network(model, factory)
    plan = quantizer.plan(network)
    if dataset is None and plan.static:
        raise UsageError(
            f"{len(plan.static)} activations need calibration data, such as {plan.static[0].point.name}",
            where="--data",
            expected="a path, or file.py:function",
            try_="--data PATH, or a preset that finds scales in each call: --preset w8a8_dynamic",
        )
    tokens = None
    if dataset is not None:
        dataset, tokens = _as_inputs(dataset, Path(model).expanduser(), network, text_column, max_length, transform)
        _data.check_batch_size(dataset, batch_size)
        dataset.validate(network)
    with _output.TerminalProgress() as progress:
        quantized = quantizer.quantize_model(
            network, dataset, inplace=True, samples=samples, batch_size=batch_size, progress=progress
        )
        if freeze:
            quantized = quantizer.freeze(quantized, inplace=True)
        if tokens is not None:
            tokens.note(quantizer.record)
        quantizer.record.facts |= {"model": model, "data": data}
        quantized.fewbit_record = quantizer.record
        named = factory or (model if registry.is_reference(model) else None)
        export(quantized, out, overwrite=overwrite, factory=named)
    if json:
        _output.print_json({"output": str(out), **vars(quantizer.record)})
    else:
        for line in (*_summary.lines(quantizer.record), f"in {out}; load it with {_loading(out, model, named)}"):
            _output.stdout().print(line, markup=False)
    return 0


def _as_inputs(
    dataset: Dataset, folder: Path, network: Any, column: str | None, max_length: int, transform: str | None
) -> tuple[Dataset, _texts.Tokens | None]:
    """The dataset, tokenized where it is text and the model takes tokens."""
    from fewbit.data.dataset import Dataset

    if transform is not None or not _texts.needs_tokens(dataset, network):
        if column is not None:
            raise UsageError(
                f"--text-column {column}, and nothing is tokenized here",
                where="--text-column",
                expected="rows of text, a model that takes input_ids, and no --transform",
            )
        return dataset, None
    tokens = _texts.Tokens(folder, network, next(iter(dataset)), column=column, max_length=max_length)
    return Dataset(_texts.Placed(dataset.source), tokens), tokens


def _loading(out: Path, model: str, factory: str | None) -> str:
    """The call that reads the folder."""
    if factory is not None:
        return f"fewbit.load({str(out)!r}, factory={factory!r})"
    return f"fewbit.load({str(out)!r}{'' if Path(model).is_dir() else f', {model!r}'})"
