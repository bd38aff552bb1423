# SPDX-License-Identifier: Apache-2.0
"""Array files: one `.npz` sample a file under the model's input names; also stacked, as `.npy`, or in a `.tar`.

A sample has the arrays' names as keys (the model's input names where a signature is given) and numpy arrays
without a batch axis as values: native byte order, C order. bfloat16 is held as float32. An array called `label`,
`labels`, `target`, `targets` or `y` is an answer unless the model has an input of that name.

    folder/input1.npz, input2.npz …       one sample a file, in natural order; train/ val/ test/ are splits
    folder/sample-inputs/, sample-outputs/   as `capture(outputs=True)` writes them; the inputs are read
    folder/0.npy, 1.npy …                 the same for models with one input (the array is called `input`)
    folder/input_ids.npy, mask.npy        one array a column: called like the model's inputs, or with stacked=True
    stack.npz, stack.npy                  one file, the first axis of every array counts samples
    samples.tar                           any number of the first two, read in place

In a folder and in a `.tar` a file is one sample, whatever its shape, unless `stacked=True` is said or a model shows
that its first axis is the batch. Only a file that is given itself is taken for a stack by its looks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fewbit.data import walk
from fewbit.data.arrays.faults import ARRAY_CODES
from fewbit.data.arrays.fit_codes import FIT_CODES
from fewbit.data.arrays.npz_check import NpzCheck
from fewbit.data.arrays.npz_fix import NpzFix
from fewbit.data.arrays.npz_source import NpzSource
from fewbit.data.arrays.option_types import demand_types
from fewbit.data.arrays.sample_files import ARRAYS, Listing, list_units, looks_like_arrays
from fewbit.data.arrays.sampling import Sampling
from fewbit.data.arrays.splits_inside import in_words, splits_inside
from fewbit.data.arrays.values import VALUE_CODES
from fewbit.data.findings import Code, DataReport, Policy, Severity
from fewbit.data.formats._base import Match
from fewbit.data.sample import Place
from fewbit.data.signature import Signature, read_signature
from fewbit.data.source import Source
from fewbit.data.split_names import split_word
from fewbit.errors import DataError, UsageError, nearest

_LOOK = 200
_SHOWN = 3

CODES: Mapping[str, Code] = {
    **walk.CODES,
    **ARRAY_CODES,
    **FIT_CODES,
    **VALUE_CODES,
    "no-samples": Code(Severity.ERROR, "no array file is there", "save samples with numpy.savez or `fewbit capture`"),
    "file-ignored": Code(Severity.INFO, "a file among the samples is not an array file", "move it elsewhere"),
    "outputs-ignored": Code(
        Severity.INFO,
        "a folder sample-outputs/ lies beside sample-inputs/, as `capture(outputs=True)` writes them; it is not read",
        "right as it is; open the folder itself to read the outputs",
    ),
    "keys-differ": Code(
        Severity.ERROR, "a file's arrays have other names than those of most files", "save the same names in each file"
    ),
    "rank-differs": Code(
        Severity.ERROR, "an array has more or fewer axes than in most files", "save the same axes in each file"
    ),
    "dtype-differs": Code(
        Severity.WARN, "an array has another dtype than in most files", "save the same dtype in each file"
    ),
    "shape-differs": Code(
        Severity.INFO,
        "an array has several shapes",
        "right for texts of different length; batches then need padding or batch_size=1",
    ),
    "duplicate-sample": Code(Severity.WARN, "two samples hold the same values", "keep one of them"),
    "stacked-assumed": Code(
        Severity.INFO,
        "a lone file was read as many samples along its first axis",
        "stacked=True confirms it; stacked=False reads it as one sample",
    ),
    "columns-suspected": Code(
        Severity.INFO,
        "the .npy files have one first axis, as if each was a column of one dataset",
        "stacked=True reads them as columns; stacked=False confirms that each is a sample",
    ),
    "splits-inside": Code(
        Severity.ERROR,
        "one file holds the arrays of several splits, which are not the inputs of one sample",
        "save one file a split and open each; stacked=False if it is one sample after all",
        "raise",
        ("keep",),
    ),
    "batch-suspected": Code(
        Severity.INFO,
        "every array begins with an axis of size 1, as if a batch axis was left in",
        "check with --model model.onnx; save array[0] if it is a batch axis",
    ),
}


def detect(source: object) -> Match | None:
    """Files named `.npz` or `.npy`, a folder mostly of them, or a `.tar` that begins with them."""
    if not isinstance(source, Path):
        return None
    if source.is_file():
        return _detect_file(source)
    if not source.is_dir():
        return None
    arrays = others = 0
    for number, entry in enumerate(walk.walk(source)):
        if number >= _LOOK:
            break
        suffix = Path(entry.name).suffix.lower()
        if suffix in ARRAYS or (suffix == ".tar" and _detect_file(Path(entry.path)) is not None):
            arrays += 1
        else:
            others += 1
    if not arrays or others > arrays + 3:
        return None
    return Match(0.95 if others <= 3 else 0.6, f"{arrays} array files among the first {arrays + others} files")


def _detect_file(path: Path) -> Match | None:
    suffix = path.suffix.lower()
    if suffix in ARRAYS:
        return Match(0.95, f"a {suffix} file")
    if suffix == ".tar":
        return Match(0.95, "a .tar of array files") if looks_like_arrays(path) else None
    return None


def _splits_inside(listing: Listing, stacked: bool | None) -> list[tuple[str, str]]:
    """A dataset of one file that holds several splits, as message and advice; nothing where the user knows better."""
    if stacked is not None or len(listing.units) != 1:
        return []
    found = splits_inside(listing.units[0].scan().infos)
    return [in_words(found)] if found else []


def read(
    source: Path,
    *,
    split: str | None,
    task: str | None,
    policy: Policy,
    signature: Any = None,
    rename: Mapping[str, str] | None = None,
    stacked: bool | None = None,
    targets: Collection[str] | None = None,
    vocab_size: int | None = None,
) -> Source:
    """Open array files lazily.

    Args:
        source: a folder, a `.npz`, a `.npy` or a `.tar`.
        split: a subfolder's split; all samples when left out.
        task: not used; arrays serve any.
        policy: what to do about each fault.
        signature: a model, or its signature: samples then come under its input names, in its shapes and dtypes.
        rename: array name to input name, where they differ.
        stacked: whether the first axis counts samples. Left out: in a lone file the shapes tell; in a folder it does
            not.
        targets: names of answers; the usual ones when left out.
        vocab_size: how many token ids the model knows, for the policies of `id-range`.

    Raises:
        DataError: no array file is there.
        UsageError: no such split.
    """
    demand_types(rename=rename, stacked=stacked, targets=targets, vocab_size=vocab_size)
    known = None if signature is None else read_signature(signature)
    refused: list[str] = []
    listing = list_units(
        source,
        lambda code, path, message: refused.append(f"{path}: {message}"),
        columns=known.names if known else (),
        stacked=stacked,
    )
    for message, fix in _splits_inside(listing, stacked):
        policy.meet("splits-inside", message, Place(listing.units[0].name), fix)
    units = [unit for unit in listing.units if split is None or unit.split == (split_word(split) or split)]
    if split is not None and not units and listing.units:
        raise UsageError(f"there is no split {split!r}", where=source, expected=nearest(split, listing.splits))
    if not units:
        what = "; ".join([f"no .npz or .npy file in {source}", *refused[:_SHOWN]])
        raise policy.finding("no-samples", what, Place(str(source))).to_error()
    sampling = Sampling.decide(listing, stacked=stacked, signature=known, rename=rename, targets=targets)
    opened = NpzSource(units, sampling, policy, vocab_size)
    opened.facts.update(files=len(units), stacked=sampling.stacked, splits=listing.splits)
    if sampling.assumed:
        opened.record.note("stacked-assumed", CODES["stacked-assumed"].meaning, where=units[0].name)
    for code, path, message in listing.passed_over():
        opened.record.note(code, message, where=path)
    return opened


def check(
    source: Path,
    report: DataReport,
    *,
    task: str | None,
    signature: Signature | None,
    quick: bool,
    rename: Mapping[str, str] | None = None,
    stacked: bool | None = None,
    targets: Collection[str] | None = None,
    vocab_size: int | None = None,
) -> None:
    """Every header, how each sample fits the model, how samples differ; values too unless `quick`."""
    demand_types(rename=rename, stacked=stacked, targets=targets, vocab_size=vocab_size)
    problem = walk.report_into(report)
    listing = list_units(source, problem, columns=signature.names if signature else (), stacked=stacked)
    for passed_over in listing.passed_over():
        problem(*passed_over)
    if not listing.units:
        report.add("no-samples", "no .npz or .npy file is there", Place(source.name))
        return
    for message, fix in _splits_inside(listing, stacked):
        report.add("splits-inside", message, Place(listing.units[0].name), fix)
    sampling = Sampling.decide(listing, stacked=stacked, signature=signature, rename=rename, targets=targets)
    if sampling.assumed:
        report.add("stacked-assumed", CODES["stacked-assumed"].meaning, Place(listing.units[0].name))
    NpzCheck(listing, sampling, report, quick=quick, vocab_size=vocab_size).run()


def fix(
    source: Path,
    out: Path,
    *,
    task: str | None,
    signature: Signature | None,
    rename: Mapping[str, str] | None = None,
    stacked: bool | None = None,
    targets: Collection[str] | None = None,
    vocab_size: int | None = None,
) -> list[str]:
    """Write a repaired copy into `out` and say each change in a line.

    Raises:
        DataError: no sample would be left, or the file holds several splits.
    """
    demand_types(rename=rename, stacked=stacked, targets=targets, vocab_size=vocab_size)
    damaged: dict[str, str] = {}

    def passed_over(code: str, path: str, message: str) -> None:
        if code in ARRAY_CODES:
            damaged[path] = message

    listing = list_units(source, passed_over, columns=signature.names if signature else (), stacked=stacked)
    for message, advice in _splits_inside(listing, stacked):
        raise DataError(message, code="splits-inside", where=listing.units[0].name, try_=advice)
    sampling = Sampling.decide(listing, stacked=stacked, signature=signature, rename=rename, targets=targets)
    return NpzFix(listing, sampling, out, vocab_size, damaged).run()
