# SPDX-License-Identifier: Apache-2.0
"""Does a dataset suit calibration? Number, classes, lengths, duplicates, overlap with the validation set."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fewbit.data.dataset import Dataset
from fewbit.data.types import DataReport, IssueType, Location, SampleError, Severity
from fewbit.errors import plural
from fewbit.model_info import ModelInfo

FEW_SAMPLES, FEW_TOKENS = 100, 20_000
LARGE_SHARE = 0.05
"""Share of duplicates from which they are worth a warning."""

CALIBRATION_FEW_SAMPLES = IssueType(
    "calibration-few-samples", Severity.WARNING, "few samples to calibrate with", "add samples; 300 are the default"
)
CALIBRATION_FEW_CLASSES = IssueType(
    "calibration-few-classes", Severity.WARNING, "classes without a calibration sample",
    "add samples of the other classes, or raise {samples}",
)  # fmt: skip
CALIBRATION_DUPLICATES = IssueType(
    "calibration-duplicates", Severity.WARNING, "the same sample several times", "remove the duplicates"
)
CALIBRATION_OVERLAP = IssueType(
    "calibration-overlap", Severity.WARNING, "calibration samples that are also in the validation set",
    "measure with other samples: {validation}",
)  # fmt: skip
CALIBRATION_SHORT_TEXTS = IssueType(
    "calibration-short-texts", Severity.NOTE, "texts much shorter than the maximum length", "{pack=concatenate}"
)
ISSUES = (
    CALIBRATION_FEW_SAMPLES, CALIBRATION_FEW_CLASSES, CALIBRATION_DUPLICATES, CALIBRATION_OVERLAP,
    CALIBRATION_SHORT_TEXTS,
)  # fmt: skip

_TEXT = ("text", "prompt", "question", "context", "instruction")


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
    facts: dict[str, Any] = {"samples": len(read), "of": len(dataset)}
    if len(read) < FEW_SAMPLES:
        report.add(CALIBRATION_FEW_SAMPLES, f"{plural(len(read), 'sample')}; ranges of activations may be missed")
    _advise_classes(drawn, info.labels if info else None, report, facts, read)
    _advise_lengths(read, report, facts, max_length)
    hashes = Counter(content_hash(sample) for sample, _ in read)
    facts["duplicates"] = len(read) - len(hashes)
    if facts["duplicates"] > LARGE_SHARE * len(read):
        first = next(location for sample, location in read if hashes[content_hash(sample)] > 1)
        report.add(CALIBRATION_DUPLICATES, f"{facts['duplicates']} of {plural(len(read), 'sample')} are repeats", first)
    if validation is not None:
        _advise_overlap(hashes, validation, report, facts)
    facts["sentence"] = _sentence(facts)
    report.facts["calibration"] = facts
    return str(facts["sentence"])


def content_hash(sample: Any) -> bytes:
    """16 bytes that are equal for samples of equal content; labels count too.

    >>> content_hash({"x": np.zeros(2)}) == content_hash({"x": np.zeros(2)}) != content_hash({"x": np.zeros(3)})
    True
    """
    digest = hashlib.blake2b(digest_size=16)
    _feed(digest, sample)
    return digest.digest()


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            digest.update(f"k{key}".encode("utf-8", "surrogatepass"))
            _feed(digest, value[key])
    elif isinstance(value, list | tuple):
        digest.update(f"l{len(value)}".encode())
        for item in value:
            _feed(digest, item)
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        array = np.asarray(value.detach().cpu().float() if hasattr(value, "detach") else value)
        digest.update(f"a{array.shape}{array.dtype}".encode())
        digest.update(
            np.ascontiguousarray(array).tobytes() if array.dtype.kind != "O" else repr(array.tolist()).encode()
        )
    else:
        digest.update(f"v{type(value).__name__}{value}".encode("utf-8", "surrogatepass"))


def _read(dataset: Dataset) -> Iterator[tuple[Any, Location]]:
    """Samples with their locations; damaged ones are the business of the check itself."""
    for index in range(len(dataset)):
        try:
            yield dataset[index], dataset.location(index)
        except SampleError:
            continue


def _advise_classes(
    drawn: Dataset, labels: tuple[str, ...] | None, report: DataReport, facts: dict[str, Any], read: list[Any]
) -> None:
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
    if len(covered) < total:
        missing = [name for name in classes if name not in covered][:5]
        examples = f"; none of {', '.join(missing)}" if missing else ""
        report.add(CALIBRATION_FEW_CLASSES, f"{len(covered)} of {plural(total, 'class')} are covered{examples}")


def _advise_lengths(read: list[Any], report: DataReport, facts: dict[str, Any], max_length: int) -> None:
    """Characters of texts; a token of English text has about four."""
    lengths = [
        sum(len(value) for name, value in sample.items() if name in _TEXT and isinstance(value, str))
        for sample, _ in read
        if isinstance(sample, Mapping) and any(isinstance(sample.get(name), str) for name in _TEXT)
    ]
    if not lengths:
        return
    facts["characters"] = {
        "shortest": min(lengths), "median": int(np.median(lengths)), "longest": max(lengths), "sum": sum(lengths)
    }  # fmt: skip
    tokens = sum(min(length / 4, max_length) for length in lengths)
    if tokens < FEW_TOKENS:
        text = f"about {int(tokens):,} tokens in {plural(len(lengths), 'text')}"
        report.add(CALIBRATION_FEW_SAMPLES, text)
    if np.median(lengths) / 4 < max_length / 8:
        median = facts["characters"]["median"]
        report.add(
            CALIBRATION_SHORT_TEXTS, f"half of the texts have at most {median} characters, for {max_length} tokens"
        )


def _advise_overlap(hashes: Counter[bytes], validation: Dataset, report: DataReport, facts: dict[str, Any]) -> None:
    shared, first = 0, Location()
    for sample, location in _read(validation):
        if content_hash(sample) in hashes:
            shared, first = shared + 1, first if shared else location
    facts["overlap"] = shared
    if shared:
        text = f"{plural(shared, 'sample')} of the validation set are also calibrated with"
        report.add(CALIBRATION_OVERLAP, text, first, samples=shared)


def _sentence(facts: Mapping[str, Any]) -> str:
    clauses = [f"{facts['samples']:,} of {plural(facts['of'], 'sample')} would be drawn"]
    if "classes" in facts:
        clauses.append(f"{facts['classes']} of {plural(facts['classes_of'], 'class')} covered")
    if "characters" in facts:
        lengths = facts["characters"]
        clauses.append(f"texts of {lengths['shortest']:,} to {lengths['longest']:,} characters")
    clauses.append(plural(facts["duplicates"], "duplicate") if facts["duplicates"] else "no duplicates")
    if "overlap" in facts:
        clauses.append(
            f"{facts['overlap']} in the validation set" if facts["overlap"] else "none in the validation set"
        )
    return ", ".join(clauses)
