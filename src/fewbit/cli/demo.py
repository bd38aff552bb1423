# SPDX-License-Identifier: Apache-2.0
"""`fewbit demo`: the whole journey on small real data, in a folder to play with afterwards."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from fewbit.cli import _classifier, _classifier_onnx, _digits, _output
from fewbit.errors import FewbitError, MissingLibrary, UsageError

_MARK = ".made-by-fewbit-demo"
_TITLES = {
    "module": "A classifier of digits, trained just now and quantized (597 digits it has not seen):",
    "onnx": "The same as an ONNX file, quantized from the samples in npz/ and run in ONNX Runtime:",
}


def command(
    folder: Annotated[Path, typer.Option(help="Where to put the demo's files.")] = Path("fewbit-demo"),
    json: Annotated[bool, typer.Option("--json", help="Print what was shown as JSON.")] = False,
) -> int:
    """Make a small dataset in every format, check it, open it; train a small network and quantize it in many ways, as a
    PyTorch module and as an ONNX file.

    Examples:

        fewbit demo

        fewbit demo --json
    """
    _prepare(folder)
    trained = _optional(lambda: _classifier.make(folder))
    model = _optional(lambda: _onnx_file(trained, folder / "model.onnx"))
    results = []
    for name, make in _digits.MAKERS.items():
        result = _one_format(name, make, folder / name, model)
        results.append(result)
        if not json:
            _show(result)
    damaged = _damage(folder / "image_folder", folder / "damaged")
    tables = {} if trained is None else {"module": _optional(lambda: _classifier.quantized(*trained))}
    if trained is not None and model is not None:
        held_out = (array.numpy() for array in trained[1:])
        tables["onnx"] = _optional(lambda: _classifier_onnx.quantized(model, folder / "npz", *held_out))
    if json:
        _output.print_json({"formats": results, "damaged": damaged.to_dict(), "quantized": tables})
    else:
        out = _output.stdout()
        out.print("\nAnd a damaged copy of the first one, as [bold]fewbit check[/bold] sees it:\n")
        _output.show_report(damaged, places=5)
        for kind, rows in tables.items():
            if rows is not None:
                out.print(f"\n{_TITLES[kind]}\n")
                _show_quantized(rows)
        out.print(f"\nAll of it lies in {folder}/. Try: fewbit check {folder}/damaged --fix {folder}/repaired")
    broken = [result for result in results if result.get("ok") is False]
    return 1 if broken or damaged.ok else 0


def _onnx_file(trained: Any, path: Path) -> Path:
    return _digits.model(path) if trained is None else _classifier_onnx.write(trained[0], path)


def _prepare(folder: Path) -> None:
    if folder.exists():
        if not (folder / _MARK).is_file():
            raise UsageError(f"{folder} is there and was not made by the demo", try_="fewbit demo --folder ELSEWHERE")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / _MARK).touch()


def _one_format(name: str, make: Any, folder: Path, model: Any) -> dict[str, Any]:
    from fewbit.data.check import check_dataset
    from fewbit.data.dataset import Dataset
    from fewbit.data.describe import describe

    try:
        data = make(folder)
    except MissingLibrary as error:
        return {"format": name, "left_out": error.what, "try": error.try_}
    report = check_dataset(data)
    result = {
        "format": report.format,
        "path": str(data) if isinstance(data, Path) else describe(data, depth=0),
        "ok": report.ok,
        "understood": report.understood,
        "findings": dict(report.counts),
        "sample": report.samples[0]["sample"],
    }
    if model is not None:
        inputs = Dataset(data, _digits.as_model_input).inputs(model)
        result["model_gets"] = describe(next(iter(inputs)))
    return result


def _show(result: dict[str, Any]) -> None:
    out = _output.stdout()
    if "left_out" in result:
        out.print(Text.assemble((result["format"], "bold cyan"), f"  left out: {result['left_out']}; {result['try']}"))
        return
    verdict = ("fine", "bold green") if result["ok"] else ("not fit", "bold red")
    out.print(Text.assemble((result["format"], "bold cyan"), "  ", result["path"], "  ", verdict))
    out.print(Text(f"  one sample     {result['sample']}"))
    if "model_gets" in result:
        out.print(Text(f"  a model gets   {result['model_gets']}"))


def _show_quantized(rows: list[dict[str, Any]]) -> None:
    out = _output.stdout()
    out.print(f"{'':<14}{'bytes':>9}{'accuracy':>11}{'agrees with float':>20}")
    for row in rows:
        numbers = f"{row['bytes']:>9,}{row['accuracy']:>11.1%}{row['agreement']:>20.1%}"
        out.print(Text.assemble((f"{row['preset']:<14}", "bold cyan"), numbers))


def _damage(source: Path, target: Path) -> Any:
    """Two broken pictures and a misspelt class, the way folders really break."""
    from fewbit.data.check import check_dataset

    shutil.copytree(source, target)
    first, second, *_ = sorted(target.rglob("*.png"))
    first.write_bytes(first.read_bytes()[:60])
    second.write_bytes(b"")
    (target / "val" / "seven").rename(target / "val" / "sevn")
    return check_dataset(target)


def _optional(make: Any) -> Any:
    try:
        return make()
    except FewbitError as error:
        _output.stderr().print(f"left out: {error.what}", markup=False)
        return None
