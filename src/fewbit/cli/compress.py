# SPDX-License-Identifier: Apache-2.0
"""`fewbit compress`: narrow weights, activations as they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewbit.cli import _calibration, _choice, _data, _job
from fewbit.cli._calibration import Calibration

if TYPE_CHECKING:
    from fewbit.model.view import ModelView


def command(
    model: _choice.Model,
    out: _choice.Out,
    mode: Annotated[str, typer.Option(help="What weights become: int8_asym, int4_sym, int4_asym, nf4, mxfp4 …")],
    group_size: Annotated[int | None, typer.Option(help="Elements that share a scale; -1 for a whole row.")] = None,
    ratio: Annotated[
        float | None, typer.Option(help="The share of the weights that get the mode; the others become int8_asym.")
    ] = None,
    algorithm: Annotated[str | None, typer.Option(help="How codes are found: auto, gptq, scale_search, rtn.")] = None,
    all_layers: Annotated[bool, typer.Option(help="Embeddings and the last layer too, however narrow.")] = False,
    target: _choice.Target = None,
    ignore: _choice.Ignore = None,
    factory: _choice.Factory = None,
    data: _calibration.Data = None,
    transform: _calibration.Transform = None,
    data_format: _data.DataFormat = None,
    policy: _data.Policies = None,
    option: _data.Options = None,
    samples: _calibration.Samples = 128,
    batch_size: _calibration.BatchSize = 1,
    text_column: _calibration.TextColumn = None,
    seqlen: _calibration.Seqlen = 512,
    pack: _calibration.Pack = None,
    statistics: Annotated[
        Path | None,
        typer.Option(help="A folder for second moments: kept there with data, taken from there without."),
    ] = None,
    format: _choice.Formats = None,
    overwrite: _choice.Overwrite = False,
    json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> int:
    """Compress a model's weights and leave its activations alone; no data is needed.

    If data is given, it weighs the errors by what each input really carries.

    Examples:

        fewbit compress fewbit-demo/model.onnx --mode int4_sym --group-size 32 -o fewbit-demo/w4.onnx

        fewbit compress fewbit-demo/model.py:build --mode int8_asym -o fewbit-demo/int8_asym --json

        fewbit compress fewbit-demo/model.py:build --mode int4_sym --data fewbit-demo/npz -o fewbit-demo/int4
    """
    from fewbit.engine.compression import compression
    from fewbit.engine.options import Options
    from fewbit.schemes.modes import mode_name

    mode_name(mode)  # a wrong one is told before anything is opened

    def configure(view: ModelView) -> Any:
        return compression(
            view,
            mode,
            group_size=group_size,
            ratio=ratio,
            algorithm=algorithm,
            all_layers=all_layers,
            exclude=_choice.ignored(view, ignore),
            data=data is not None or statistics is not None,
        )

    given = Calibration(data, transform, data_format, policy, option, samples, batch_size, text_column, seqlen, pack)
    options = Options.read({"batch_size": batch_size}, target=target)
    return _job.carry_out(
        model,
        factory,
        configure,
        given,
        options,
        out,
        freeze=True,
        overwrite=overwrite,
        as_json=json,
        formats=format or (),
        statistics=statistics,
    )
