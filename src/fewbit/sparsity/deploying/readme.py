# SPDX-License-Identifier: Apache-2.0
"""The README of a deployment: what it is, how it is run, which file is what and how large, what it costs and brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fewbit.modules.compact_file import SUFFIX
from fewbit.sparsity.deploying import readme_commands as commands
from fewbit.sparsity.deploying.readme_codes import said_of_codes
from fewbit.sparsity.deploying.samples import INPUTS, OUTPUTS
from fewbit.sparsity.deploying.written import ARCHIVE, ONNX, PROGRAM, Written

_ABOUT = {
    ONNX: "the model, which ONNX Runtime reads as it is; zeros are stored like other numbers",
    ARCHIVE: "the same model.onnx without its zeros, to be kept or sent",
    PROGRAM: "the model as a program, which runs without the code that built it",
    "recipe.yaml": "what was done; `fewbit sparsify … --recipe recipe.yaml` does it again",
    "preprocessing.json": "what becomes of a sample before the model sees it",
    "labels.txt": "the names of the classes, in the order of their numbers",
    "labels.json": "the names of the classes, in the order of their numbers",
    "fewbit.json": "what the weights are, with their hashes",
}


def readme(
    folder: Path,
    written: Written,
    record: Mapping[str, Any],
    speed: Sequence[str],
    factory: str | None,
    labels: str = "",
) -> str:
    """The text.

    Args:
        folder: with all other files in it.
        written: what was written of the model.
        record: the facts of the run: `use_case`, `before`, `after`.
        speed: what may be said of it, a sentence each.
        factory: `"file.py:function"` that builds the model, if there is one.
        labels: where the label names were taken from.
    """
    sections = [
        f"# Sparse model: {str(record.get('use_case', 'custom')).replace('_', ' ')}",
        *_running(folder, written, factory),
        *_figures(record),
        *(["## Speed", *(f"- {line}" for line in speed)] if speed else []),
        *_checked(written),
        *_files(folder, labels),
    ]
    return "\n\n".join(_joined(sections)) + "\n"


def _running(folder: Path, written: Written, factory: str | None) -> list[str]:
    found = ["## How to run it"]
    has_samples = (folder / INPUTS).is_dir()
    if (folder / ONNX).is_file():
        found.append(commands.ONNX_SAMPLE if has_samples else commands.ONNX_ALONE)
        if written.onnx:
            found.append(said_of_codes(written.onnx))
        if (folder / ARCHIVE).is_file():
            found += [
                "From the archive, which is smaller, the same `model.onnx` comes back, bit for bit:",
                commands.RESTORE,
            ]
    fast = ", freeze=True" if written.quantized else ""  # kernels for codes
    block = partial(commands.in_torch, first_output=_first_output(folder), bfloat16=written.bfloat16)
    if (folder / PROGRAM).is_file():
        found += ["In PyTorch, as a program: the model has other shapes than its code builds."]
        found.append(block(commands.PROGRAM))
    elif written.kind == "fewbit" and written.code:
        found.append("In PyTorch; the folder holds tensors, and the code that builds the model is yours:")
        if factory:
            found.append(block(commands.FACTORY.format(factory=_absolute(factory), build=fast)))
        else:
            found.append(block(commands.FEWBIT.format(build=f", model=your_model{fast}")))
            found.append("`your_model` is one of the same build; its values are not used.")
    elif written.kind == "fewbit":
        found += ["In PyTorch:", block(commands.FEWBIT.format(build=fast))]
        if not written.quantized:
            found.append("`model.save_pretrained('dense')` writes it as other tools read it, zeros and all.")
    if written.kind == "huggingface":
        found.append(commands.HUGGINGFACE)
    return found


def _absolute(factory: str) -> str:
    """A factory that is found from every folder: the README is run in its own."""
    file, _, function = factory.rpartition(":")
    return f"{Path(file).expanduser().resolve()}:{function}"


def _first_output(folder: Path) -> str | None:
    """The first output of the first sample; none where there is no sample that a model takes by names."""
    first = [folder / name / "000.npz" for name in (INPUTS, OUTPUTS)]
    if not all(path.is_file() for path in first):
        return None
    with np.load(first[0]) as inputs, np.load(first[1]) as outputs:
        return next(iter(outputs.files), None) if inputs.files else None


def _figures(record: Mapping[str, Any]) -> list[str]:
    before, after = record.get("before") or {}, record.get("after") or {}
    rows = ["| | before | after |", "|---|---|---|"]
    earlier = before.get("numbers", {})
    rows += [f"| {name} | {_figure(earlier.get(name))} | {_figure(now)} |" for name, now in after["numbers"].items()]
    shares = [f"{each['sparsity']['share']:.1%}" if "sparsity" in each else "" for each in (before, after)]
    rows.append(f"| zeros among the weights | {shares[0]} | {shares[1]} |")
    for key, what in (("raw", "bytes of tensors"), ("compact", "the same without zeros")):
        both = [f"{each['bytes'][key]:,}" if "bytes" in each else "" for each in (before, after)]
        rows.append(f"| {what} | {both[0]} | {both[1]} |")
    text = "\n".join(rows)
    rests = f"On {after.get('samples', 0)} samples ({after.get('on')}), 95 % intervals in brackets."
    near = (after.get("agreement") or {}).get("verdict")
    return ["## What it costs and brings", text, rests, *([f"Beside the dense model: {near}."] if near else [])]


def _figure(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    ends = "" if found.get("low") is None else f" ({found['low']:.4g} to {found['high']:.4g})"
    return f"{found['value']:.4g}{ends}"


def _checked(written: Written) -> list[str]:
    lines = [
        f"- {name}: the answers to {check['samples']:.0f} samples differ from those of the model as it was made by at "
        f"most {check['largest']:.3g} ({check['relative']:.2g} of the largest answer)"
        for name, check in written.checks.items()
        if check["samples"]
    ]
    return ["## Checked", *(lines or ["- there were no samples to check it by"])]


def _files(folder: Path, labels: str) -> list[str]:
    rows = ["| file | bytes | |", "|---|---:|---|"]
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            inside = [each for each in path.rglob("*") if each.is_file()]
            about = {INPUTS: "a few samples as the model takes them", OUTPUTS: "what it answers to them"}.get(
                path.name, ""
            )
            rows.append(f"| {path.name}/ | {sum(each.stat().st_size for each in inside):,} | {about} |")
        elif path.name != "README.md":
            about = _ABOUT.get(path.name, "")
            if path.stem == "labels" and labels:
                about += f" ({labels})"
            if path.name.endswith(SUFFIX) and path.name != ARCHIVE:
                about = "the weights, zeros left out"
            rows.append(f"| {path.name} | {path.stat().st_size:,} | {about} |")
    whole = [name for name in (ONNX, ARCHIVE, PROGRAM) if (folder / name).is_file()]
    whole += [path.name for path in sorted(folder.glob(f"fewbit*{SUFFIX}"))][:1]
    each = f"Each of {', '.join(whole)} is the whole model; one of them is enough." if len(whole) > 1 else ""
    return ["## Files", "\n".join(rows), *([each] if each else [])]


def _joined(sections: Sequence[str]) -> list[str]:
    """Lines of a list stay together."""
    found: list[str] = []
    for each in sections:
        if found and each.startswith("- ") and found[-1].rpartition("\n")[2].startswith("- "):
            found[-1] += f"\n{each}"
        else:
            found.append(each)
    return found
