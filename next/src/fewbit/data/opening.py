# SPDX-License-Identifier: Apache-2.0
"""From whatever the user has to a `Source`: find the files, choose the format, scan.

open_source(data)
  locate      path, archive, URL, hub name, corpus, FILE.py:NAME, object  -> Files or an object
  detect      every format's confidence; two that are equally sure are an error, never a guess
  scan        one pass that reports issues and indexes samples
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fewbit import registry
from fewbit.data.files import Folder
from fewbit.data.types import Action, DataReport, Depth, Detection, Files, Format, Source
from fewbit.errors import DataError, UsageError, nearest, plural

_SURE = 0.5
_CLOSE = 0.15
"""Two formats whose confidence differs by less are both possible."""


def open_source(
    data: Any,
    *,
    data_format: str | None = None,
    data_option: Mapping[str, Any] | None = None,
    task: str | None = None,
    split: str | None = None,
    on_error: Action | Mapping[str, Action] | None = None,
    depth: Depth = "index",
) -> tuple[Source, DataReport]:
    """Open anything that holds samples.

    Args:
        data: a path, archive, URL, hub name, `FILE.py:NAME`, or an object.
        data_format: which format to read it as; detected by default.
        data_option: settings of the format.
        task: what the samples are for, where the format needs to know.
        split: train, val or test.
        on_error: what to do about damaged samples.
        depth: `full` decodes every sample.

    Returns:
        The samples, and the report of the scan.

    Raises:
        DataError: there is an issue whose action is to raise; all of them are named.
    """
    source, report = scan_source(
        data, data_format=data_format, data_option=data_option, task=task, split=split, on_error=on_error, depth=depth
    )
    if raising := report.raising():
        raise issues_error(report, raising)
    return source, report


def scan_source(
    data: Any,
    *,
    data_format: str | None = None,
    data_option: Mapping[str, Any] | None = None,
    task: str | None = None,
    split: str | None = None,
    on_error: Action | Mapping[str, Action] | None = None,
    depth: Depth = "index",
) -> tuple[Source, DataReport]:
    """The same without raising for issues: `check` shows them all."""
    _check_codes(on_error)
    report = DataReport(on_error=on_error)
    options = dict(data_option or {})
    options |= {name: value for name, value in (("task", task), ("split", split)) if value is not None}
    if not isinstance(data, str | Path):
        return _scan_object(data, report, options, depth)
    report.source = str(data)
    if (special := special_source(str(data), report, data_format, options, depth)) is not None:
        report.complete = True
        return special, report
    files = locate(str(data), report)
    format, reason = choose_format(files, data_format)
    report.data_format = format.name
    report.facts["reason"] = reason
    _check_options(format, options)
    if (shown := getattr(files, "location", None)) is not None:  # inside an archive or behind a URL
        report.prefix = shown("x").removesuffix("x")
    source = format.scan(files, report, depth=depth, options=options)
    if depth == "full":  # otherwise the length may take a pass over a whole table
        report.facts.setdefault("samples", len(source))
    report.complete = True
    return source, report


def locate(data: str, report: DataReport) -> Files:
    """The files behind a path, an archive or a URL."""
    from fewbit.data import archives, remote

    if remote.is_url(data):
        return remote.open_url(data, report)
    path = Path(data).expanduser()
    if not data.strip() or not _exists(path):  # an empty text would mean the current folder
        if "{" in path.name and _exists(path.parent):
            shards = archives.listed_files(Folder(path.parent), path.name, data, report)
            if shards is not None:
                return shards
        raise missing_path(data, path)
    if f"{os.path.realpath(path)}/".startswith(("/proc/", "/sys/", "/dev/")):
        raise DataError(
            f"{data} is part of the operating system", code="data-system", where=data,
            expected="a folder or file of data", hint="copy what you need into a folder of your own",
        )  # fmt: skip
    files = Folder(path, data, report)
    if path.is_file() and archives.is_archive(path.name):
        return archives.open_archive(files, path.name, data, report)
    return files


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long, a folder without permission
        return False


def choose_format(files: Files, name: str | None = None) -> tuple[Format, str]:
    """The format to read files as, with the reason.

    Args:
        files: what there is.
        name: the user's choice.

    Raises:
        DataError: no format knows it, or several do.
    """
    if name is not None:
        format: Format = registry.get("data_formats", name, param="data_format")
        return format, "as asked for"
    formats: dict[str, Format] = registry.members("data_formats")
    found = [(detection, format) for format in formats.values() if (detection := format.detect(files)) is not None]
    found = sorted((pair for pair in found if pair[0].confidence > 0), key=lambda pair: -pair[0].confidence)
    sure = [pair for pair in found if pair[0].confidence > _SURE]
    if not sure:
        raise _unknown(files, found)
    best, runner_up = sure[0], sure[1] if len(sure) > 1 else None
    if runner_up is not None and best[0].confidence - runner_up[0].confidence < _CLOSE:
        choices = [f"{format.name} ({detection.reason})" for detection, format in sure]
        raise DataError(
            f"{files.root} looks like {plural(len(choices), 'format')}",
            code="format-ambiguous",
            where=files.root,
            expected="; ".join(choices),
            hint=f"{{data_format={best[1].name}}}",
        )
    return best[1], best[0].reason


def issues_error(report: DataReport, issues: list[Any]) -> DataError:
    """One error that names every issue that stops a reader."""
    first = issues[0]
    shown = "; ".join(str(issue) for issue in issues[:5])
    more = f" and {len(issues) - 5} more" if len(issues) > 5 else ""
    what = f"{first.type.meaning}" if len(issues) == 1 else f"{plural(len(issues), 'issue')} in {report.source}"
    return DataError(
        what,
        code=first.code if len({issue.code for issue in issues}) == 1 else "data-issues",
        where=f"{shown}{more}",
        expected=None,
        hint=f"{first.type.hint}; or {{on_error=drop}}; `fewbit check` lists everything"
        if "drop" in first.type.actions
        else f"{first.type.hint}; `fewbit check` lists everything",
    )


def missing_path(data: str, path: Path) -> DataError:
    """An error that lists what is there instead."""
    parent = next((parent for parent in path.absolute().parents if parent.is_dir()), Path("/"))
    try:
        there = sorted(entry.name for entry in parent.iterdir() if not entry.name.startswith("."))
    except OSError:
        there = []
    similar = nearest(path.name, there) or there[:8]
    return DataError(
        f"there is no file or folder {data!r}",
        code="data-missing",
        where=data,
        expected=f"something in {parent}: {', '.join(similar) or 'which is empty'}",
        hint="check the spelling, or give a URL or a hub name such as hf:org/name",
    )


def _scan_object(data: Any, report: DataReport, options: Mapping[str, Any], depth: Depth) -> tuple[Source, DataReport]:
    from fewbit.data.objects import count_samples, object_source

    report.source = type(data).__name__
    report.data_format = "objects"
    source = object_source(data, report, options, depth=depth)
    count_samples(source, report)
    report.complete = True
    return source, report


def _check_codes(on_error: Action | Mapping[str, Action] | None) -> None:
    """Refuse actions for issue codes that do not exist: a typing error would protect from nothing."""
    if not isinstance(on_error, Mapping) or set(on_error) <= {"*", "**"}:
        return
    from fewbit.data.issues import issue_types

    codes = {kind.code for kinds in issue_types().values() for kind in kinds}
    for code in on_error:
        if code not in codes and code not in ("*", "**"):
            raise UsageError(
                f"no issue has the code {code!r}", code="issue-unknown", param="on_error",
                expected=", ".join(nearest(code, codes)) or "a code of docs/issues.md",
                hint="`fewbit list issues` lists all",
            )  # fmt: skip


def _check_options(format: Format, options: Mapping[str, Any]) -> None:
    known = {option.name: option for option in format.options}
    for name in options:
        if name not in known and name not in ("task", "split"):
            similar = nearest(name, known) or list(known)
            raise UsageError(
                f"the format {format.name} has no option {name!r}",
                code="data-option-unknown",
                param="data_option",
                expected=", ".join(similar) or "no options",
                hint=f"`fewbit list data-formats` and docs/data.md list the options of {format.name}",
            )


def _unknown(files: Files, found: list[tuple[Detection, Format]]) -> DataError:
    from fewbit.data.recognized import recognized

    if (answer := recognized(files)) is not None:
        return DataError(answer.pop("what"), **answer)
    names = list(files.names()[:8])
    guesses = [f"{format.name} ({detection.reason})" for detection, format in found[:3]]
    return DataError(
        f"{files.root} is no dataset that fewbit recognizes",
        code="format-unknown",
        where=f"{files.root}, which holds {', '.join(names) or 'no files'}",
        expected="; ".join(guesses) or "see `fewbit list data-formats`",
        hint="{data_format} names a format; FILE.py:FN reads a format of your own",
    )


def special_source(
    data: str, report: DataReport, data_format: str | None, options: Mapping[str, Any], depth: Depth
) -> Source | None:
    """The samples behind a text that is no path: code, a corpus, a database, a name on the hub; `None` for paths.

    Args:
        data: as the user wrote it.
        report: takes issues and the format.
        data_format: the user's choice, which may be `FILE.py:NAME`.
        options: of the format, with `task` and `split`.
        depth: see `open_source`.
    """
    from fewbit.data import hub
    from fewbit.data.objects import count_samples
    from fewbit.data.user_code import parse_reference

    source: Source | None
    if data_format is not None and parse_reference(data_format) is not None:
        from fewbit.data.user_data import user_format_source

        source = user_format_source(data, data_format, report, depth=depth, options=options)
    elif parse_reference(data) is not None and not Path(data).exists():
        from fewbit.data.user_data import user_source

        source = user_source(data, report, depth=depth, options=options)
    elif hub.is_database_url(data):
        from fewbit.data.formats.sql import scan_url

        source = scan_url(data, report, depth=depth, options=options)
    else:
        source = hub.corpus_source(data, report, depth=depth, options=options) if data_format is None else None
        if source is None and data_format in (None, "huggingface") and not _exists(Path(data).expanduser()):
            explicit = data_format is not None
            source = hub.hub_source(data, report, depth=depth, options=options, explicit=explicit)
    if source is not None:
        count_samples(source, report)
    return source
