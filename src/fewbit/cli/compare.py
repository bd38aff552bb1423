# SPDX-License-Identifier: Apache-2.0
"""`fewbit compare`: how far a compressed model's answers are from the original's, and which layers do it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fewbit import registry
from fewbit.cli import _calibration, _choice, _comparison, _data, _output
from fewbit.cli._calibration import Calibration
from fewbit.errors import UsageError

Original = Annotated[
    str, typer.Argument(help="An .onnx file, a Hugging Face folder, a .pt2, a state dict, or file.py:function.")
]
Compressed = Annotated[str, typer.Argument(help="The same, or a folder that fewbit exported.")]
Data = Annotated[str, typer.Option(help="What both are asked: a path, wikitext, pileval, or file.py:name.")]
Kind = Annotated[
    str | None, typer.Option(help="What answers are: language, classes or values; found by looking if not given.")
]


def command(
    original: Original,
    compressed: Compressed,
    data: Data,
    kind: Kind = None,
    factory: _choice.Factory = None,
    transform: _calibration.Transform = None,
    data_format: _data.DataFormat = None,
    policy: _data.Policies = None,
    option: _data.Options = None,
    samples: _calibration.Samples = 300,
    batch_size: _calibration.BatchSize = 1,
    text_column: _calibration.TextColumn = None,
    seqlen: _calibration.Seqlen = 512,
    pack: _calibration.Pack = None,
    json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> int:
    """Ask two models the same questions: perplexity, KL and agreement with 95 % intervals, and the worst layers.

    Intervals take the spread between samples, since the positions of one text go together. A difference is claimed only
    where its interval leaves zero out.

    Examples:

        fewbit compare fewbit-demo/model.onnx fewbit-demo/model-w8a8.onnx --data fewbit-demo/npz

        fewbit compare fewbit-demo/model.onnx fewbit-demo/model-w4a16.onnx --data fewbit-demo/npz --json
    """
    from fewbit.engine.comparing import compare

    given = Calibration(data, transform, data_format, policy, option, samples, batch_size, text_column, seqlen, pack)
    dataset: Any = given.open()
    needing = [model for model in (original, compressed) if _lacks_code(model)]
    if factory is not None and not needing:
        raise UsageError(f"--factory, and both {original} and {compressed} say how they are built", where="--factory")
    first = _choice.network(original, factory if original in needing else None)
    second = (
        compressed
        if Path(compressed).is_dir()
        else _choice.network(compressed, factory if compressed in needing else None)
    )
    dataset = given.as_inputs(dataset, original, first)
    with _output.TerminalProgress() as progress:
        record = compare(first, second, dataset, kind=kind, samples=samples, batch_size=batch_size, progress=progress)
    record.facts |= {"original": original, "compressed": compressed, "data": data}
    if json:
        _output.print_json(vars(record))
        return 0
    for line in _comparison.lines(record):
        _output.stdout().print(line, markup=False)
    return 0


def _lacks_code(model: str) -> bool:
    """Whether a path holds tensors alone."""
    from fewbit.modules import manifest
    from fewbit.modules.state_file import PICKLED

    place = Path(model).expanduser()
    if registry.is_reference(model):
        return False
    if place.is_dir():
        return manifest.is_export(place) and "huggingface" not in manifest.read(place)
    return place.suffix.lower() in (".safetensors", *PICKLED)
