# SPDX-License-Identifier: Apache-2.0
"""`fewbit plan`: what quantizing would do to each layer, and what it would cost."""

from __future__ import annotations

from typing import Annotated

import typer

from fewbit.cli import _choice, _output


def command(
    model: _choice.Model,
    preset: _choice.Preset = None,
    config: _choice.Configuration = None,
    target: _choice.Target = None,
    ignore: _choice.Ignore = None,
    factory: _choice.Factory = None,
    json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> int:
    """Say what each layer would become, which stay in float and why, the sizes, the memory and the time.

    No data is read and nothing is changed. Of an ONNX model with static activations it is an upper bound: the time that
    a layer saves and the error it brings are known with data only.

    Examples:

        fewbit plan fewbit-demo/model.onnx

        fewbit plan fewbit-demo/model.onnx --target openvino

        fewbit plan fewbit-demo/model.py:build

        fewbit plan fewbit-demo/model.safetensors --factory fewbit-demo/model.py:build --preset w4a16 --json
    """
    from fewbit.engine.run import view_of
    from fewbit.engine.usual import usual
    from fewbit.engine.verbs import plan

    chosen, network = _choice.configuration(preset, config), _choice.network(model, factory)
    if not isinstance(network, str):  # a graph has no head that a preset leaves alone
        chosen = usual(chosen, view_of(network), named=config is None, data=False)
    made = plan(network, config=chosen.excluding(ignore or ()), target=target)
    if json:
        _output.print_json(made.to_dict())
    else:
        _output.stdout().print(made.text(), markup=False)
    return 0
