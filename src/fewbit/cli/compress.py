# SPDX-License-Identifier: Apache-2.0
"""`fewbit compress`: narrow weights, activations as they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewbit.cli import _calibration, _checkpoint, _choice, _data, _job
from fewbit.cli._calibration import Calibration
from fewbit.errors import UsageError

if TYPE_CHECKING:
    from fewbit.model.view import ModelView


def command(
    model: _choice.Model,
    out: _choice.Out,
    mode: Annotated[
        list[str] | None,
        typer.Option(help="What weights become: int8_asym, int4_sym, nf4, mxfp4 …; again, with --bits, for a choice."),
    ] = None,
    bits: Annotated[
        float | None,
        typer.Option(help="Instead: 2, 3, 4 or 8. A fraction is an average, each layer with the bits that it needs."),
    ] = None,
    group_size: Annotated[int | None, typer.Option(help="Elements that share a scale; -1 for a whole row.")] = None,
    ratio: Annotated[
        float | None, typer.Option(help="The share of the weights that get the mode; the others become int8_asym.")
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="How codes are found: auto, gptq, scale_search, rtn; awq or awq+gptq with data.")
    ] = None,
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

    If data is given, it weighs the errors by what each input really carries. Without, a Hugging Face folder goes to a
    checkpoint format file to file: the model is not opened, and memory follows a piece of a tensor.

    Examples:

        fewbit compress fewbit-demo/model.onnx --mode int4_sym --group-size 32 -o fewbit-demo/w4.onnx

        fewbit compress fewbit-demo/model.py:build --mode int8_asym -o fewbit-demo/int8_asym --json

        fewbit compress fewbit-demo/model.py:build --mode int4_sym --data fewbit-demo/npz -o fewbit-demo/int4

        fewbit compress fewbit-demo/model.py:build --bits 5.5 --data fewbit-demo/npz -o fewbit-demo/mixed
    """
    from fewbit.engine.checkpoint import goes_file_to_file
    from fewbit.engine.mixture import mixture, one_mode
    from fewbit.engine.options import Options
    from fewbit.engine.stages import split_stages

    if not mode and bits is None:
        raise UsageError("neither --mode nor --bits", where="--mode", expected="one of the two, such as --bits 4")
    modes = mode[0] if mode and len(mode) == 1 else mode or None
    single = one_mode(modes, bits, ratio)  # what cannot be is told before anything is opened
    options = Options.read({"batch_size": batch_size}, target=target)
    algorithm, options = split_stages(algorithm, options, data=data is not None, statistics=statistics is not None)

    def configure(view: ModelView) -> Any:
        return mixture(
            view,
            modes,
            bits=bits,
            ratio=ratio,
            group_size=group_size,
            algorithm=algorithm,
            all_layers=all_layers,
            exclude=_choice.ignored(view, ignore),
            data=data is not None or statistics is not None,
        )

    given = Calibration(data, transform, data_format, policy, option, samples, batch_size, text_column, seqlen, pack)
    opened = None
    plain = data is None and statistics is None and single is not None and factory is None and target is None
    if plain and goes_file_to_file(model, format or (), algorithm):
        done = _checkpoint.carry_out(
            model, out, format or (), ignore, as_json=json, mode=single, group_size=group_size, algorithm=algorithm,
            all_layers=all_layers, overwrite=overwrite,
        )  # fmt: skip
        if isinstance(done, int):
            return done
        opened = done
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
        opened=opened,
    )
