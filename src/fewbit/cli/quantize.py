# SPDX-License-Identifier: Apache-2.0
"""`fewbit quantize`: a model and a folder of data in, a smaller model out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewbit.cli import _calibration, _choice, _data, _job
from fewbit.cli._calibration import Calibration
from fewbit.engine.options import PRICE
from fewbit.errors import UsageError

if TYPE_CHECKING:
    from fewbit.model.view import ModelView


def command(
    model: _choice.Model,
    out: _choice.Out,
    data: _calibration.Data = None,
    preset: _choice.Preset = None,
    config: _choice.Configuration = None,
    target: _choice.Target = None,
    ignore: _choice.Ignore = None,
    kv_cache: Annotated[
        str | None,
        typer.Option(help="Of a language model: keys and values as fp8 or int8; fp8_dynamic, int8_dynamic by token."),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(
            help=f"Of an ONNX model: the error that is worth all its time; {PRICE} if not given, inf for speed."
        ),
    ] = None,
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
    freeze: Annotated[bool, typer.Option(help="Choose kernels, so that the record says what runs here.")] = True,
    format: _choice.Formats = None,
    overwrite: _choice.Overwrite = False,
    json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> int:
    """Quantize a model and write it, with the record of what became of each layer.

    An ONNX model becomes a file with its record beside it, any other a folder that `fewbit.load` reads. Texts are
    tokenized by the tokenizer beside the model. Output, configuration, model and the first sample are checked before
    the work starts; an interrupted run leaves nothing.

    Examples:

        fewbit quantize fewbit-demo/model.onnx --data fewbit-demo/npz -o fewbit-demo/int8.onnx

        fewbit quantize fewbit-demo/model.py:build --preset w4a16 -o fewbit-demo/w4a16

        fewbit quantize fewbit-demo/model.py:build --data fewbit-demo/npz -o fewbit-demo/w8a8 --json
    """
    from fewbit.engine.options import Options
    from fewbit.engine.usual import usual, with_cache

    given = Calibration(data, transform, data_format, policy, option, samples, batch_size, text_column, seqlen, pack)
    chosen = with_cache(_choice.configuration(preset, config), kv_cache)
    more = {"batch_size": batch_size} | ({} if price is None else {"price": price})
    # Biases are corrected by what the data shows of each layer's input.
    options = Options.read(more, target=target, correct=None if data is None else "fast_bias_correction", prepare=None)

    def configure(view: ModelView) -> Any:
        if price is not None and "place" not in view.can:
            raise UsageError(f"--price {price} for {model}", where="--price", expected="an ONNX model")
        found = usual(chosen, view, named=config is None, data=data is not None)
        return found.excluding(_choice.ignored(view, ignore))

    return _job.carry_out(
        model,
        factory,
        configure,
        given,
        options,
        out,
        freeze=freeze,
        overwrite=overwrite,
        as_json=json,
        formats=format or (),
    )
