# SPDX-License-Identifier: Apache-2.0
"""Does a dataset suit calibration? Number, classes, lengths, duplicates, overlap with the validation set."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fewbit.data.dataset import FEW_CLASSES, Dataset
from fewbit.data.types import DataReport, IssueType, Location, SampleError, Severity
from fewbit.errors import plural
from fewbit.model_info import ModelInfo

LEAST_SAMPLES = 32
"""Fewer samples than this do not show the ranges of activations; `quantize` warns."""
FEW_SAMPLES, FEW_TOKENS = 100, 20_000
LARGE_SHARE = 0.05
"""Share of duplicates from which they are worth a warning."""


def _warning(code: str, meaning: str, hint: str) -> IssueType:
    return IssueType(code, Severity.WARNING, meaning, hint)


CALIBRATION_FEW_SAMPLES = _warning(
    "calibration-few-samples", "few samples to calibrate with", "add samples; 300 are the default"
)
CALIBRATION_DUPLICATES = _warning(
    "calibration-duplicates", "the same sample several times", "remove the duplicates"
)  # fmt: skip
CALIBRATION_OVERLAP = _warning(
    "calibration-overlap", "calibration samples that are also in the validation set",
    "measure with other samples: {validation}",
)  # fmt: skip
CALIBRATION_SHORT_TEXTS = IssueType(
    "calibration-short-texts", Severity.NOTE, "texts much shorter than the maximum length", "{pack=concatenate}"
)
ISSUES = (CALIBRATION_FEW_SAMPLES, CALIBRATION_DUPLICATES, CALIBRATION_OVERLAP, CALIBRATION_SHORT_TEXTS)

_TEXT = ("text", "prompt", "question", "context", "instruction")
Read = list[tuple[Any, Location]]


def advise(
    dataset: Dataset,
    report: DataReport,
    *,
    info: ModelInfo | None = None,
    validation: Dataset | None = None,
    samples: int = 300,
    seed: int = 0,
    max_length: int = 512,
) -> str:
    """Judge whether a dataset suits calibration, as `quantize` would draw from it.

    Args:
        dataset: all of the data.
        report: takes the issues, and `facts["calibration"]` the figures and the sentence.
        info: the model, whose labels are the classes to cover.
        validation: the separate validation set, if there is one.
        samples: how many `quantize` would draw.
        seed: of the draw.
        max_length: tokens per text.

    Returns:
        One sentence with the figures.
    """
    drawn = dataset.subset(samples, seed) if len(dataset) else dataset
    read = list(_read(drawn))
    clauses = [f"{len(read):,} of {plural(len(dataset), 'sample')} would be drawn"]
    facts: dict[str, Any] = {"samples": len(read), "of": len(dataset)}
    if len(read) < FEW_SAMPLES:
        report.add(CALIBRATION_FEW_SAMPLES, f"{plural(len(read), 'sample')}; ranges of activations may be missed")
    clauses += _advise_classes(drawn, info.labels if info else None, report, facts, read)
    clauses += _advise_lengths(read, report, facts, max_length)
    clauses += _advise_copies(read, validation, report, facts)
    facts["sentence"] = ", ".join(clauses)
    report.facts["calibration"] = facts
    return str(facts["sentence"])


def _read(dataset: Dataset) -> Iterator[tuple[Any, Location]]:
    """Samples with their locations; damaged ones are the business of the check itself."""
    for index in range(len(dataset)):
        try:
            yield dataset[index], dataset.location(index)
        except SampleError:
            continue


def _advise_classes(
    drawn: Dataset, labels: tuple[str, ...] | None, report: DataReport, facts: dict[str, Any], read: Read
) -> Iterator[str]:
    """How many classes the draw covers, of those the dataset or the model has."""
    classes = [str(name) for name in drawn.classes or labels or ()]
    counts = drawn.class_counts()
    if counts is not None:
        covered = {name for name, count in counts.items() if count}
    else:
        sample_labels = [sample.get("label") for sample, _ in read if isinstance(sample, Mapping)]
        numbers = [label for label in sample_labels if isinstance(label, int | np.integer)]
        covered = {classes[number] for number in numbers if 0 <= number < len(classes)}
        covered |= {label for label in sample_labels if isinstance(label, str)}
    if not classes or not covered:
        return
    total = max(len(classes), len(labels or ()))
    facts |= {"classes": len(covered), "classes_of": total}
    yield f"{len(covered)} of {plural(total, 'class')} covered"
    if len(covered) < total:
        missing = [name for name in classes if name not in covered][:5]
        examples = f"; none of {', '.join(missing)}" if missing else ""
        report.add(FEW_CLASSES, f"{len(covered)} of {plural(total, 'class')} are covered{examples}")


def _advise_lengths(read: Read, report: DataReport, facts: dict[str, Any], max_length: int) -> Iterator[str]:
    """Characters of texts; a token of English text has about four."""
    texts = [
        [sample[name] for name in _TEXT if isinstance(sample.get(name), str)]
        for sample, _ in read
        if isinstance(sample, Mapping)
    ]
    lengths = [sum(map(len, parts)) for parts in texts if parts]
    if not lengths:
        return
    median, tokens = int(np.median(lengths)), sum(min(length / 4, max_length) for length in lengths)
    facts["characters"] = {"shortest": min(lengths), "median": median, "longest": max(lengths), "sum": sum(lengths)}
    yield f"texts of {min(lengths):,} to {max(lengths):,} characters"
    if tokens < FEW_TOKENS:
        text = f"about {int(tokens):,} tokens in {plural(len(lengths), 'text')}"
        report.add(CALIBRATION_FEW_SAMPLES, text)
    if median / 4 < max_length / 8:
        text = f"half of the texts have at most {plural(median, 'character')}, for {max_length} tokens"
        report.add(CALIBRATION_SHORT_TEXTS, text)


def _advise_copies(read: Read, validation: Dataset | None, report: DataReport, facts: dict[str, Any]) -> Iterator[str]:
    """Samples that are drawn twice, and those that are also in the validation set."""
    digests = [content_hash(sample) for sample, _ in read]
    counts = Counter(digests)
    copies = facts["duplicates"] = len(read) - len(counts)
    yield plural(copies, "duplicate") if copies else "no duplicates"
    if copies > LARGE_SHARE * len(read):
        first = next(location for (_, location), digest in zip(read, digests) if counts[digest] > 1)
        report.add(CALIBRATION_DUPLICATES, f"{copies} of {plural(len(read), 'sample')} are repeats", first)
    if validation is None:
        return
    shared = [location for sample, location in _read(validation) if content_hash(sample) in counts]
    facts["overlap"] = len(shared)
    yield f"{len(shared) or 'none'} in the validation set"
    if shared:
        text = f"{plural(len(shared), 'sample')} of the validation set are also calibrated with"
        report.add(CALIBRATION_OVERLAP, text, shared[0], samples=len(shared))


def content_hash(sample: Any) -> bytes:
    """16 bytes that are equal for samples of equal content; labels count too.

    >>> content_hash({"x": np.zeros(2)}) == content_hash({"x": np.zeros(2)}) != content_hash({"x": np.zeros(3)})
    True
    """
    digest = hashlib.blake2b(digest_size=16)

    def feed(value: Any) -> None:
        if isinstance(value, Mapping):
            value = [part for key in sorted(value, key=str) for part in (str(key), value[key])]
        if hasattr(value, "detach"):
            value = value.detach().cpu().float().numpy()
        if isinstance(value, list | tuple):
            digest.update(f"l{len(value)}".encode())
            for item in value:
                feed(item)
        elif isinstance(value, np.ndarray) and value.dtype.kind != "O":
            digest.update(f"a{value.shape}{value.dtype}".encode())
            digest.update(np.ascontiguousarray(value).tobytes())
        else:
            digest.update(f"v{type(value).__name__}{value}".encode("utf-8", "surrogatepass"))

    feed(sample)
    return digest.digest()
