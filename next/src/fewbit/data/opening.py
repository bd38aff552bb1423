# SPDX-License-Identifier: Apache-2.0
"""From whatever the user has to a `Source`: find the files, choose the format, scan.

open_source(data)
  locate      path, archive, URL  -> Files;  hub name, corpus, database, FILE.py:NAME, object  -> its own source
  detect      every format's confidence; two that are equally sure are an error, never a guess
  scan        one pass that reports issues and indexes samples
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, get_args

from fewbit import registry
from fewbit.data.files import Folder, is_operating_system
from fewbit.data.types import Action, DataReport, Depth, Detection, Files, Format, Issue, Severity, Source
from fewbit.errors import DataError, UsageError, nearest, plural

if TYPE_CHECKING:
    from fewbit.data.dataset import Dataset

_SURE = 0.5
_CLOSE = 0.15
"""Two formats whose confidence differs by less are both possible."""
_MOST_NAMES = 100_000
"""Names whose suffixes are looked at."""


class ReadingOptions(TypedDict, total=False):
    """How to read data."""

    data_format: str | None  # which format to read it as; detected by default
    data_option: Mapping[str, Any] | None  # settings of the format
    task: str | None  # what the samples are for, where the format needs to know
    split: str | None  # train, val or test
    on_error: Action | Mapping[str, Action] | None  # what to do about damaged samples
    depth: Depth  # `full` decodes every sample


def open_source(data: Any, **options: Unpack[ReadingOptions]) -> tuple[Source, DataReport]:
    """The samples of anything that holds some, and the report of the scan.

    Args:
        data: a path, archive, URL, hub name, `FILE.py:NAME`, or an object.
        options: see `ReadingOptions`.

    Raises:
        DataError: there is an issue whose action is to raise; all of them are named.
    """
    source, report = scan_source(data, **options)
    if raising := report.raising():
        raise issues_error(report, raising)
    return source, report


def open_samples(data: Any, *, samples: int | None = None, seed: int = 0, **options: Unpack[ReadingOptions]) -> Dataset:
    """A dataset, or a seeded sample of it; without what is damaged, if `on_error` says `drop`.

    To drop, every sample is read once, so that length, indexing and iteration agree; of a sample only those drawn.
    Streams are read as they come: iteration skips.

    Args:
        data: see `open_source`.
        samples: how many to draw; all by default.
        seed: of the draw.
        options: see `ReadingOptions`.
    """
    from fewbit.data.dataset import Dataset

    on_error = options.get("on_error")
    drop = "drop" in (on_error.values() if isinstance(on_error, Mapping) else (on_error,))
    scanned = drop and (samples is None or _needs_scan(on_error))
    if scanned and isinstance(data, str | Path) and exists(local_path(str(data))):
        options["depth"] = "full"  # the scan leaves out what it can, faster than decoding sample by sample
    dataset = Dataset.of(*open_source(data, **options))
    if samples is not None:
        dataset = dataset.subset(samples, seed)
    if drop and not dataset.is_stream and (options.get("depth") != "full" or dataset.report.issues):
        dataset = dataset.drop_damaged()
    return dataset


def _needs_scan(on_error: Action | Mapping[str, Action] | None) -> bool:
    """Whether samples are dropped that only a scan finds: copies, empty texts and others that decode well."""
    if not isinstance(on_error, Mapping):
        return False
    from fewbit.data.issues import issue_types

    dropped = {code for code, action in on_error.items() if action == "drop"}
    kinds = (kind for kinds in issue_types().values() for kind in kinds if kind.severity is not Severity.ERROR)
    return any(not dropped.isdisjoint((kind.code, *kind.aliases)) for kind in kinds)


def scan_source(data: Any, **options: Unpack[ReadingOptions]) -> tuple[Source, DataReport]:
    """The same without raising for issues: `check` shows them all."""
    on_error, depth = options.get("on_error"), options.get("depth", "index")
    _check_codes(on_error)
    report = DataReport(on_error=on_error)
    settings = dict(options.get("data_option") or {})
    settings |= {name: options[name] for name in ("task", "split") if options.get(name) is not None}  # type: ignore[literal-required]
    source = _scan_named(data, report, options.get("data_format"), settings, depth)
    if source is None:
        source = _scan_files(str(data), report, options.get("data_format"), settings, depth)
    report.complete = True
    return source, report


def _scan_named(
    data: Any, report: DataReport, data_format: str | None, options: Mapping[str, Any], depth: Depth
) -> Source | None:
    """The samples of whatever is not files: an object, code, a corpus, a database, a name on the hub; else `None`."""
    from fewbit.data import hub, objects, user_data
    from fewbit.data.user_code import parse_reference

    source: Source | None
    if not isinstance(data, str | Path):
        report.source, report.data_format = objects.type_name(data), "objects"
        source = objects.object_source(data, report, options, depth=depth)
    else:
        data = report.source = str(data)
        missing = not exists(local_path(data))
        if data_format is not None and parse_reference(data_format) is not None:
            source = user_data.user_format_source(data, data_format, report, depth=depth, options=options)
        elif missing and parse_reference(data) is not None:
            source = user_data.user_source(data, report, depth=depth, options=options)
        elif hub.is_database_url(data):
            from fewbit.data.formats.sql import scan_url

            source = scan_url(data, report, depth=depth, options=options)
        else:
            source = hub.corpus_source(data, report, depth=depth, options=options) if data_format is None else None
            if source is None and missing and data_format in (None, "huggingface"):
                explicit = data_format is not None
                source = hub.hub_source(data, report, depth=depth, options=options, explicit=explicit)
    if source is not None:
        objects.count_samples(source, report)
    return source


def _scan_files(
    data: str, report: DataReport, data_format: str | None, options: Mapping[str, Any], depth: Depth
) -> Source:
    report.files = files = locate(data, report)
    format, report.facts["reason"] = choose_format(files, data_format)
    report.data_format, report.unit = format.name, format.unit
    check_options(options, [option.name for option in format.options], f"the format {format.name}")
    if (location := getattr(files, "location", None)) is not None:  # inside an archive or behind a URL
        report.prefix = location("x").removesuffix("x")
    source = format.scan(files, report, depth=depth, options=options)
    if depth == "full":  # otherwise the length may take a pass over a whole table
        report.facts.setdefault("samples", len(source))
    return source


def locate(data: str, report: DataReport) -> Files:
    """The files behind a path, an archive or a URL."""
    from fewbit.data import archives, remote

    if remote.is_url(data):
        return remote.open_url(data, report)
    path = local_path(data)
    if not data.strip() or not exists(path):  # an empty text would mean the current folder
        if "{" in path.name and exists(path.parent):
            shards = archives.listed_files(Folder(path.parent), path.name, data, report)
            if shards is not None:
                return shards
        raise missing_path(data, path)
    if is_operating_system(os.path.realpath(path)):
        raise DataError(
            f"{data} is part of the operating system", code="data-system", where=data,
            expected="a folder or file of data", hint="copy what you need into a folder of your own",
        )  # fmt: skip
    files = Folder(path, data, report)
    if path.is_file() and archives.is_archive(path.name):
        return archives.open_archive(files, path.name, data, report)
    return files


def choose_format(files: Files, name: str | None = None) -> tuple[Format, str]:
    """The format to read files as, with the reason.

    Args:
        files: what there is.
        name: the user's choice.

    Raises:
        DataError: no format knows it, or several do.
    """
    if name is not None:
        return registry.get("data_formats", name, param="data_format"), "as asked for"
    from fewbit.data.recognized import labels_alone

    detections = _detect(files)
    sure = [(detection, format) for detection, format in detections if detection.confidence > _SURE]
    if not sure:
        raise _unknown(files, detections)
    best, format = sure[0]
    if format.name == "text" and (answer := labels_alone(files)) is not None:
        raise DataError(answer.pop("what"), **answer)
    if len(sure) > 1 and best.confidence - sure[1][0].confidence < _CLOSE:
        raise DataError(
            f"{files.root} looks like {plural(len(sure), 'format')}", code="format-ambiguous", where=files.root,
            expected=_described(sure), hint=f"{{data_format={format.name}}}",
        )  # fmt: skip
    return format, best.reason


def _detect(files: Files) -> list[tuple[Detection, Format]]:
    """What each format thinks of the files, the surest first; formats whose suffixes are missing are not asked."""
    names = files.names()[:_MOST_NAMES]
    suffixes = {f".{word}" for name in names for word in name.rpartition("/")[2].lower().split(".")[1:][-2:]}
    detections = []
    for format in registry.members("data_formats").values():
        if len(names) > 1 and format.suffixes and suffixes.isdisjoint(format.suffixes):
            continue
        detection = format.detect(files)
        if detection is not None and detection.confidence > 0:
            detections.append((detection, format))
    return sorted(detections, key=lambda pair: -pair[0].confidence)


def _described(detections: Iterable[tuple[Detection, Format]]) -> str:
    return "; ".join(f"{format.name} ({detection.reason})" for detection, format in detections)


def _unknown(files: Files, detections: Sequence[tuple[Detection, Format]]) -> DataError:
    """What to tell a user whose files no format wants."""
    from fewbit.data.archives import is_archive
    from fewbit.data.recognized import recognized

    names = list(files.names()[:8])
    if names and all(is_archive(name) for name in names):
        return DataError(
            f"{files.root} holds only archives: {', '.join(names)}", code="archive-nested", where=files.root,
            expected="an archive of data files", hint="unpack it, and give one of the archives inside",
        )  # fmt: skip
    if (answer := recognized(files)) is not None:
        return DataError(answer.pop("what"), **answer)
    return DataError(
        f"{files.root} is no dataset that fewbit recognizes", code="format-unknown",
        where=f"{files.root}, which holds {', '.join(names) or 'no files'}",
        expected=_described(detections[:3]) or "see `fewbit list data-formats`",
        hint="{data_format} names a format; FILE.py:FN reads a format of your own",
    )  # fmt: skip


def issues_error(report: DataReport, issues: Sequence[Issue]) -> DataError:
    """One error that names every issue that stops a reader."""
    kind = issues[0].type
    others = f" and {len(issues) - 5} more" if len(issues) > 5 else ""
    way_out = "; or {on_error=drop}" if "drop" in kind.actions else ""
    return DataError(
        kind.meaning if len(issues) == 1 else f"{plural(len(issues), 'issue')} in {report.source}",
        code=kind.code if len({issue.code for issue in issues}) == 1 else "data-issues",
        where="; ".join(str(issue) for issue in issues[:5]) + others,
        hint=f"{kind.hint}{way_out}; `fewbit check` lists everything",
    )


def missing_path(data: str, path: Path) -> DataError:
    """An error that lists what is there instead."""
    parent = next((parent for parent in path.absolute().parents if parent.is_dir()), Path("/"))
    try:
        names = sorted(entry.name for entry in parent.iterdir() if not entry.name.startswith("."))
    except OSError:
        names = []
    hint = "check the spelling, or give a URL or a hub name such as hf:org/name"
    if re.fullmatch(r"[\w-]+", data):
        hint = f"check the spelling; or {{data=hf:{data}}} if it is a dataset of the Hugging Face hub"
    return DataError(
        f"there is no file or folder {data!r}", code="data-missing", where=data,
        expected=f"something in {parent}: {', '.join(nearest(path.name, names) or names[:8]) or 'which is empty'}",
        hint=hint,
    )  # fmt: skip


def check_options(options: Iterable[str], names: Sequence[str], owner: str) -> None:
    """Refuse settings that the format, or whatever else takes them, does not have."""
    for name in options:
        if name not in names and name not in ("task", "split"):
            raise UsageError(
                f"{owner} has no option {name!r}", code="data-option-unknown", param="data_option",
                expected=", ".join(nearest(name, names) or names) or "no options",
                hint="`fewbit list data-formats` and docs/data.md list the options of each format",
            )  # fmt: skip


def _check_codes(on_error: Action | Mapping[str, Action] | None) -> None:
    """Refuse codes that do not exist and actions that they do not allow: both would protect from nothing."""
    if not isinstance(on_error, Mapping):
        return
    from fewbit.data.issues import issue_types

    choices: dict[str, dict[Action, None]] = {name: dict.fromkeys(get_args(Action)) for name in ("*", "**")}
    for kind in (kind for kinds in issue_types().values() for kind in kinds):
        for code in (kind.code, *kind.aliases):  # formats may differ in what they can do about the same issue
            choices.setdefault(code, {}).update(dict.fromkeys(kind.choices))
    for code, action in sorted(on_error.items()):
        if code not in choices:
            raise UsageError(
                f"no issue has the code {code!r}", code="issue-unknown", param="on_error",
                expected=", ".join(nearest(code, choices)) or "a code of docs/issues.md",
                hint="`fewbit list issues` lists all",
            )  # fmt: skip
        if action not in choices[code]:
            subject = "there is no" if code in ("*", "**") else f"the issue {code} does not allow the"
            raise UsageError(
                f"{subject} action {action!r}", code="action-unknown", param="on_error",
                expected=", ".join(choices[code]), hint="`fewbit list issues` and docs/issues.md list them all",
            )  # fmt: skip


def local_path(data: str) -> Path:
    """A text as a path; `~` is the user's home."""
    try:
        return Path(data).expanduser()
    except RuntimeError:  # the home of a user who does not exist
        return Path(data)


def exists(path: Path) -> bool:
    """Whether there is something at a path that may be looked at."""
    try:
        return path.exists()
    except OSError:  # a name too long, a folder without permission
        return False
