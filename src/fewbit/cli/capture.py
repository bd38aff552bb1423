# SPDX-License-Identifier: Apache-2.0
"""`fewbit capture`: what a PyTorch model really receives, as `.npz` samples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fewbit.cli import _data, _output
from fewbit.cli._reference import load_function


def command(
    model: Annotated[str, typer.Argument(help="A function that returns the model, as file.py:function.")],
    data: Annotated[str, typer.Option(help="A dataset to run through it, or file.py:name that is or returns one.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder for the samples.")],
    names: Annotated[
        str | None, typer.Option(help="An ONNX file whose input names to use, or names with commas.")
    ] = None,
    transform: Annotated[str | None, typer.Option(help="A transform_fn, as file.py:function.")] = None,
    format: _data.Format = None,
    policy: _data.Policies = None,
    option: _data.Options = None,
    max_samples: Annotated[
        int | None, typer.Option(help="Maximum number of samples, a random sample of the data.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="How many samples to run at a time.")] = 1,
    overwrite: Annotated[bool, typer.Option(help="Replace the samples of an earlier capture.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> int:
    """Run data through a PyTorch model and write what arrives at its inputs, one `.npz` a sample.

    Examples:

        fewbit capture fewbit-demo/model.py:build --data fewbit-demo/npz -o fewbit-demo/captured

        fewbit capture fewbit-demo/model.py:build --data fewbit-demo/npz -o fewbit-demo/some --max-samples 8 --json
    """
    from fewbit.data.capture import capture_dataset
    from fewbit.data.drawing import draw

    network = load_function(model, returns="the model")()
    dataset = _data.open_data(data, transform, format=format, policies=policy, options=option)
    _data.check_batch_size(dataset, batch_size)
    given = names if names is None or names.endswith(".onnx") else names.split(",")
    with _output.TerminalProgress() as progress:
        limited = dataset if max_samples is None else draw(dataset, max_samples)
        inputs = progress.track(limited.inputs(network, batch_size), total=None, label="capturing")
        manifest = capture_dataset(network, inputs, out, names=given, max_samples=max_samples, overwrite=overwrite)
    if json:
        _output.print_json(manifest)
    else:
        _output.stdout().print(f"{manifest['count']:,} samples in {out}", markup=False)
        for name, described in manifest.get("inputs", {}).items():
            shape = "…" if described["shape"] is None else ", ".join(map(str, described["shape"]))
            _output.stdout().print(f"  {name}: {described['dtype']}[{shape}]", markup=False)
    return 0
