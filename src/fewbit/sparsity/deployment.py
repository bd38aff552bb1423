# SPDX-License-Identifier: Apache-2.0
"""`deployment/`: a sparse model with all that is needed to run it, to trust it and to make it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from torch import nn

from fewbit.data.signature import read_signature
from fewbit.engine.staging import made_whole
from fewbit.modules import manifest
from fewbit.sparsity.deploying.labels import DATA, Labels, labels_of
from fewbit.sparsity.deploying.model_files import write_graph, write_module
from fewbit.sparsity.deploying.readme import readme
from fewbit.sparsity.deploying.samples import Sample, items_of, samples_of, write_samples
from fewbit.sparsity.deploying.written import Written
from fewbit.sparsity.job import Job
from fewbit.sparsity.latency import latency, words
from fewbit.sparsity.measuring import measure
from fewbit.sparsity.unchanged import is_unchanged

NAME = "deployment"


def deploy(folder: Path, model: Any, *, dense: Any, recipe: Any, use_case: Any, job: Job) -> Path:
    """Write the folder `deployment` into another one; it is there whole or not at all.

    What was written is read back and asked a few samples: in ONNX Runtime where it is ONNX, else in PyTorch. What was
    found out goes into the job's record: `deployment`, `latency`, `speed`, and `before` and `after` if nobody measured.

    Args:
        folder: where it goes; nothing that is there is replaced.
        model: the sparse model, an `nn.Module` or an ONNX `ModelProto`; not changed.
        dense: the model it was made from.
        recipe: with `to_yaml`.
        use_case: what it is for.
        job: of the call. With `compact: False` among its options a Hugging Face model that has no codes is written
            as transformers reads it, zeros and all.

    Returns:
        The folder.

    Raises:
        UsageError: a folder that is in use.
        DataError: what was written answers otherwise than the model.
    """
    facts = job.record.facts
    for name, each in (("before", dense), ("after", model)):
        if name not in facts:
            facts[name] = measure(each, job)
    items = items_of(model, job)
    samples = samples_of(model, items)
    if not samples:
        job.record.note("no-samples", "there is no data: nothing was timed, and the deployment has no samples")
    same = is_unchanged(dense, model)
    facts["latency"] = latency(dense, model, items[0]) if items and not same else None
    facts["speed"] = words(model, facts["latency"], unchanged=same)
    target = Path(folder) / NAME
    with made_whole(target, overwrite=False) as staged:
        if isinstance(model, nn.Module):
            written = write_module(model, staged, samples, job)
        else:
            written = write_graph(model, staged, samples)
        labels = labels_of(model, samples, job)
        _write_rest(staged, model, samples, recipe, use_case, job)
        _write_labels(staged, labels)
        facts["speed"] += written.speed
        text = readme(staged, written, facts, facts["speed"], job.factory, labels.source)
        (staged / "README.md").write_text(text, encoding="utf-8")
        _list_files(staged)
        facts["deployment"] = _facts(staged, written)
    facts["labels"] = {"names": list(labels.names), "source": labels.source} if labels.source else None
    if labels.source == DATA:
        job.record.note("labels-from-data", labels.source, where=NAME)
    elif labels.source and not labels.names:
        job.record.note("labels-unknown", f"no labels are written: {labels.source}", where=NAME)
    for what, reason in written.notes:
        job.record.note(what, reason, where=NAME)
    return target


def _write_rest(folder: Path, model: Any, samples: list[Sample], recipe: Any, use_case: Any, job: Job) -> None:
    (folder / "recipe.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
    specs = read_signature(model).inputs
    inputs: dict[str, Any] = {spec.name: {"shape": spec.shape, "dtype": spec.dtype} for spec in specs}
    if samples:  # which say it better: a module's signature has names alone
        seen = samples[0].inputs.items()
        inputs = {name: {"shape": list(array.shape), "dtype": str(array.dtype)} for name, array in seen}
    content = {"use_case": getattr(use_case, "name", None), "inputs": inputs, **job.preprocessing}
    _write_json(folder / "preprocessing.json", content)
    write_samples(folder, samples)


def _write_labels(folder: Path, labels: Labels) -> None:
    """One name per line, by output index; as JSON if a name has more than one line."""
    if any("\n" in name or "\r" in name for name in labels.names):
        _write_json(folder / "labels.json", labels.names)
    elif labels.names:
        (folder / "labels.txt").write_text("".join(f"{name}\n" for name in labels.names), encoding="utf-8")


def _write_json(path: Path, content: Any) -> None:
    path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY, default=str))


def _list_files(folder: Path) -> None:
    """Hashes of all files in the manifest of fewbit's own format, where there is one."""
    if manifest.is_export(folder):
        content = manifest.read(folder)
        (folder / manifest.NAME).unlink()
        more = {
            name: value for name, value in content.items() if name not in ("version", "format", "versions", "files")
        }
        manifest.write(folder, content["format"], more)


def _facts(folder: Path, written: Written) -> dict[str, Any]:
    sizes = {name: (folder / name).stat().st_size for name in manifest.files(folder)}
    return {"kind": written.kind, "files": sizes, "checks": written.checks, "onnx": written.onnx}
