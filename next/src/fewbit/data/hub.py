# SPDX-License-Identifier: Apache-2.0
"""Data by name, not by path: `hf:org/name@revision`, `org/name`, and the common calibration corpora.

    wikitext, pileval       a file or folder of that name, the cache of `datasets`, or the hub
    wikitext=PATH           the path, read as that corpus: lines of wikitext become articles

Whether the hub can be reached is tried once, for three seconds; the library alone would wait for half a minute.
"""

from __future__ import annotations

import inspect
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fewbit.data.files import Folder
from fewbit.data.types import DataReport, Depth, Source
from fewbit.errors import DataError, MissingLibraryError, require

DATABASES = (
    "sqlite", "postgresql", "postgres", "mysql", "mariadb", "mssql", "oracle", "duckdb", "snowflake", "bigquery",
)  # fmt: skip
PROBE_SECONDS = 3
_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_EXPLICIT = re.compile(r"hf:((?:[\w-][\w.-]*/)?[\w-][\w.-]*)(?:@([\w./-]+))?")
_FILE = re.compile(
    r"\.(csv|tsv|jsonl?|ndjson|parquet|arrow|feather|zip|tar|tgz|gz|zst|txt|md|rst|npz|npy|db|sqlite3?|xlsx?|ods|py|onnx|ya?ml"
    r"|png|jpe?g|webp|tiff?|wav|flac|mp3)$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Corpus:
    """A well-known text corpus on the hub: a split that no benchmark evaluates on, and whether rows are lines."""

    hub: str
    split: str
    config: str = "default"
    rows_are_lines: bool = False


CORPORA = {
    "pileval": Corpus("mit-han-lab/pile-val-backup", "validation"),
    "wikitext": Corpus("Salesforce/wikitext", "train", "wikitext-2-raw-v1", rows_are_lines=True),
}
_ONLY_OF_LINES = ("empty-text", "duplicate-row", "missing-values", "split-leak")
"""Issues of rows that say nothing about a corpus whose rows are lines: it has many blank ones."""


def corpus_source(data: str, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> Source | None:
    """A corpus by its name, or `NAME=PATH`; `None` if the text is something else.

    Raises:
        DataError: the corpus is not available; the message names three ways to get it.
    """
    name, _, path = data.partition("=")
    if name not in CORPORA:
        return None
    path = path or (f"./{name}" if Path(name).exists() else "")
    if path:
        from fewbit.data.opening import scan_source

        others = {key: value for key, value in options.items() if key not in ("task", "split")}
        source, inner = scan_source(
            path, data_option=others, task=options.get("task"), split=options.get("split"), on_error=report.on_error,
            depth=depth,
        )  # fmt: skip
        vars(report).update(vars(inner), source=data, complete=False)
    else:
        source = _from_cache(name, report, depth, options) or _from_hub(name, report, depth, options)
    if not CORPORA[name].rows_are_lines or not _has_lines(source):
        return source
    from fewbit.data.formats.text import Articles

    for code in _ONLY_OF_LINES:
        for table in (report.counts, report.affected, report.types):
            table.pop(code, None)  # type: ignore[attr-defined]
    report.issues[:] = [issue for issue in report.issues if issue.code not in _ONLY_OF_LINES]
    return Articles(source)


def hub_source(
    data: str, report: DataReport, *, depth: Depth, options: Mapping[str, Any], explicit: bool = False
) -> Source | None:
    """A dataset of the hub; `None` if the text cannot be the name of one.

    Args:
        data: `hf:name@revision`, or `org/name` if there is no such path here.
        report: takes issues.
        depth: see `Format.scan`.
        options: `config`, and those of rows.
        explicit: `data_format` names the hub.
    """
    match = _EXPLICIT.fullmatch(data)
    if match is None and not (explicit or is_hub_name(data)):
        return None
    from fewbit.data.formats.huggingface import FORMAT, scan_object
    from fewbit.data.opening import check_options

    name, revision = (match[1], match[2]) if match is not None else (data, None)
    check_options(options, [option.name for option in FORMAT.options], "a dataset of the hub")
    loaded = _load(name, options.get("config"), revision, data)
    row_options = {key: value for key, value in options.items() if key != "config"}
    return scan_object(loaded, report, depth=depth, options=row_options)


def is_hub_name(data: str) -> bool:
    """Whether a text is `org/name`, and no path that was misspelt: neither the folder nor a file suffix says so.

    >>> is_hub_name("openai/gsm8k"), is_hub_name("data/train.csv"), is_hub_name("/data/x")
    (True, False, False)
    """
    if _NAME.fullmatch(data) is None or _FILE.search(data):
        return False
    return not Path(data).exists() and not Path(data).parent.exists()


def is_database_url(text: str) -> bool:
    """Whether a text is the URL of a database.

    >>> is_database_url("postgresql+psycopg://host/db"), is_database_url("s3://bucket/a.db")
    (True, False)
    """
    scheme, separator, _ = text.partition("://")
    return bool(separator) and scheme.lower().partition("+")[0] in DATABASES


def hub_reachable() -> bool:
    """Whether the hub accepts a connection; `True` with a proxy or offline settings, which the library handles."""
    settings = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HTTPS_PROXY", "https_proxy")
    if any(os.environ.get(name) for name in settings):
        return True
    address = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        socket.create_connection((address.hostname or "", address.port or 443), timeout=PROBE_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def _load(name: str, config: str | None, revision: str | None, data: str) -> Any:
    datasets = require("datasets", extra="hf", purpose="datasets of the Hugging Face hub")
    prefix = "" if data.startswith("hf:") else f"there is no file or folder {data!r}, and "
    if not hub_reachable():
        raise _unreachable(f"{prefix}the Hugging Face hub cannot be reached", name, data)
    # Before version 4 the library ran loading scripts, if an environment variable or the user at a prompt said so.
    takes_code = "trust_remote_code" in inspect.signature(datasets.load_dataset).parameters
    refusal = {"trust_remote_code": False} if takes_code else {}
    try:
        return datasets.load_dataset(name, config, revision=revision, **refusal)
    except Exception as error:  # the library raises anything from its many layers
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        raise _unreachable(f"{prefix}the hub returned no dataset {name!r}: {reason}", name, data) from error


def _unreachable(message: str, name: str, data: str) -> DataError:
    return DataError(
        message, code="hub-unreachable", where=data, expected="a path that exists, or a hub name and a network",
        hint=f"check the spelling; or where there is a network, load_dataset({name!r}).save_to_disk(FOLDER), and give"
        " that folder; or HF_HUB_OFFLINE=1 if the dataset is in the cache of `datasets`",
    )  # fmt: skip


def _from_cache(name: str, report: DataReport, depth: Depth, options: Mapping[str, Any]) -> Source | None:
    """The corpus from the cache of `datasets`; loading it by name would try the network first."""
    corpus = CORPORA[name]
    folder = _datasets_cache() / corpus.hub.replace("/", "___") / corpus.config
    files = sorted(folder.glob(f"*/*/*-{corpus.split}*.arrow"))
    if not files:
        return None
    newest = max({path.parent for path in files}, key=lambda parent: (parent.stat().st_mtime, parent.name))
    from fewbit.data.formats import arrow
    from fewbit.data.splits import split_of_file

    report.data_format = "arrow"
    return arrow.scan(
        Folder(newest, name, report), report, depth=depth, options={"split": split_of_file(corpus.split), **options}
    )


def _datasets_cache() -> Path:
    if folder := os.environ.get("HF_DATASETS_CACHE"):
        return Path(folder).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    return Path(home).expanduser() / "datasets"


def _from_hub(name: str, report: DataReport, depth: Depth, options: Mapping[str, Any]) -> Source:
    corpus = CORPORA[name]
    try:
        loaded = _load(corpus.hub, corpus.config, None, f"hf:{corpus.hub}")
    except (DataError, MissingLibraryError) as error:
        raise DataError(
            f"{name} is not on this machine: {error.what}", code="hub-unreachable",
            where=f"{corpus.hub} ({corpus.config}, {corpus.split}) on the hub",
            expected="a file, the cache of `datasets`, or the hub",
            hint=f"{{data={name}=PATH}}; or a file or folder called {name}; or where there is a network,"
            f" load_dataset({corpus.hub!r}, {corpus.config!r}, split={corpus.split!r}).to_json('{name}.jsonl')",
        ) from error  # fmt: skip
    from fewbit.data.formats.huggingface import scan_object

    dataset = loaded[corpus.split] if isinstance(loaded, Mapping) else loaded
    return scan_object(dataset, report, depth=depth, options=options)


def _has_lines(source: Source) -> bool:
    """Whether rows may be lines; documents of text files are articles already."""
    from fewbit.data.formats.text import TextSource

    if isinstance(source, TextSource) or not len(source):
        return False
    return isinstance(source[0].get("text"), str)
