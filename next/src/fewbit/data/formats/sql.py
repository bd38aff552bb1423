# SPDX-License-Identifier: Apache-2.0
"""Databases: SQLite files through the standard library, any other through SQLAlchemy and a URL. Only ever read.

The keys of a table are read once; rows are then fetched by key: microseconds, where OFFSET costs milliseconds. The
rows of a query, a view, or a table without a key are spooled to a temporary file as they are read.
"""

from __future__ import annotations

import os
import re
import sqlite3
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import quote

from fewbit.data.cache import cached_file
from fewbit.data.files import Folder
from fewbit.data.formats import _sqlalchemy
from fewbit.data.formats._sqlalchemy import BAD_DATABASE, database_error
from fewbit.data.rows.meaning import ROW_ISSUES, ROW_OPTIONS, row_source
from fewbit.data.rows.table import ListTable, Row, Table
from fewbit.data.spool import Spool
from fewbit.data.types import (
    DataReport,
    Depth,
    Detection,
    Files,
    Format,
    FormatOption,
    Issue,
    IssueType,
    Location,
    SampleError,
    Severity,
    Source,
)
from fewbit.errors import UsageError, nearest

SUFFIXES = (".db", ".sqlite", ".sqlite3", ".db3")
MAGIC = b"SQLite format 3\0"
MOST_VALUE = 64 << 20
"""Bytes of one value."""
_KEYS_PER_QUERY = 500
_BLOCK = 1000
_NO_ROWS = cast(Table, ListTable([]))
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_READING = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)

SEVERAL_TABLES = IssueType(
    "several-tables", Severity.ERROR, "database of several tables", "choose one: {data_option=table=NAME}", "raise"
)
WRITE_AHEAD_LOG = IssueType(
    "write-ahead-log", Severity.WARNING, "rows that are not in the database file yet, and are not read",
    "close the program that writes, or run PRAGMA wal_checkpoint",
)  # fmt: skip


def detect(files: Files) -> Detection | None:
    """One SQLite file, by its first bytes."""
    names = [name for name in files.names()[:100] if name.lower().endswith(SUFFIXES) or len(files.names()) == 1]
    databases = [name for name in names[:8] if files.read(name, 16) == MAGIC]
    if not databases:
        return None
    return Detection(0.95 if len(files.names()) == 1 else 0.6, "a SQLite database")


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> Source:
    """Choose the table and read its keys."""
    names = [name for name in files.names() if files.read(name, 16) == MAGIC] or list(files.names()[:1])
    database = SqliteFile(files, names[0]) if names else None
    return _scan(database, report, depth, options)


def scan_url(url: str, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> Source:
    """The rows of a database behind a URL such as `postgresql://user:password@host/name`.

    Args:
        url: `sqlite:///file.db` is read like the file; other databases need SQLAlchemy and their own driver.
        report: its source is the URL without the password.
        depth: see `Format.scan`.
        options: `table` or `query`, and those of rows.
    """
    _check_options(options)
    report.data_format = "sql"
    if (path := re.fullmatch(r"sqlite:///([^?]+)(\?.*)?", url)) is not None:
        file = Path(path[1])
        if not file.is_file():
            from fewbit.data.opening import missing_path

            raise missing_path(str(file), file)
        report.source = url
        files = Folder(file, url, report)
        return _scan(SqliteFile(files, file.name), report, depth, options)
    report.source = _sqlalchemy.without_password(url)
    return _scan(_sqlalchemy.SqlAlchemyDatabase(url), report, depth, options)


class Database(Protocol):
    """A database that is only read; every error of it is a `SampleError`."""

    name: str

    def tables(self) -> list[str]:
        """Names of the tables, without views."""
        ...

    def key(self, table: str) -> str | None:
        """The column that identifies a row, quoted; `None` if there is none, or the name is that of a view."""
        ...

    def quoted(self, name: str) -> str:
        """A name as it stands in a statement."""
        ...

    def columns(self, statement: str) -> list[str]:
        """Column names of a SELECT statement."""
        ...

    def rows(self, statement: str, keys: Sequence[Any] | None = None) -> Iterator[tuple[list[str], tuple[Any, ...]]]:
        """Column names and values of each row of a SELECT statement; one that ends with IN is given the keys."""
        ...


def _scan(database: Database | None, report: DataReport, depth: Depth, options: Mapping[str, Any]) -> Source:
    table = _NO_ROWS
    try:
        if database is not None:
            table = _table(database, report, options) or table
    except SampleError as error:
        report.add(error.issue.type, error.issue.message, error.issue.location)
    if report.raising():  # do not also report that there are no rows
        return row_source(table, None, DataReport(), depth="index", options={})
    try:
        return row_source(table, None, report, depth=depth, options=options)
    except SampleError as error:
        report.add(error.issue.type, error.issue.message, error.issue.location)
        return row_source(_NO_ROWS, None, DataReport(), depth="index", options={})


def _table(database: Database, report: DataReport, options: Mapping[str, Any]) -> Table | None:
    query, table = options.get("query"), options.get("table")
    if isinstance(database, SqliteFile) and database.has_log:
        report.add(WRITE_AHEAD_LOG, f"{database.name}-wal is next to it", Location(database.name), samples=0)
    if query is not None:
        return SpooledTable(database, single_select(str(query)), "the query")
    tables = database.tables()
    if table is None and len(tables) != 1:
        message = f"tables: {', '.join(tables[:20])}" if tables else "it has no table"
        report.add(SEVERAL_TABLES, message, Location(database.name), samples=0)
        return None
    name = str(table) if table is not None else tables[0]
    key = database.key(name)
    if key is None and name not in tables and not _is_view(database, name):
        raise UsageError(
            f"the database has no table {name!r}", code="table-missing", param="data_option", where=database.name,
            expected=", ".join(nearest(name, tables) or tables[:20]) or "a database with tables",
            hint="check the spelling of {data_option=table=NAME}",
        )  # fmt: skip
    if key is None:
        return SpooledTable(database, f"SELECT * FROM {database.quoted(name)}", name)
    return KeyedTable(database, name, key)


def _is_view(database: Database, name: str) -> bool:
    try:
        database.columns(f"SELECT * FROM {database.quoted(name)}")
    except SampleError:
        return False
    return True


def single_select(query: str) -> str:
    """A query, if it is one SELECT statement.

    >>> single_select("select a from b;")
    'select a from b'
    """
    statement = query.strip().rstrip(";").strip()
    skeleton = re.sub(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"", "''", _COMMENT.sub(" ", statement)).strip()
    if not re.match(r"(?i)(select|with|values)\b", skeleton) or ";" in skeleton:
        raise UsageError(
            f"this is not one SELECT statement: {query[:80]!r}", code="query", param="data_option",
            expected="one SELECT statement", hint="{data_option=query=SELECT text, label FROM reviews}",
        )  # fmt: skip
    return statement


class KeyedTable:
    """A table whose rows are fetched by their key.

    Args:
        database: where it is.
        table: its name.
        key: the column that identifies a row, quoted.
    """

    def __init__(self, database: Database, table: str, key: str):
        self._database, self._table, self._key = database, table, key
        self._from = f"FROM {database.quoted(table)}"
        keys = [values[0] for _, values in database.rows(f"SELECT {key} {self._from} ORDER BY {key}")]
        fits_int64 = all(type(value) is int and -(2**63) <= value < 2**63 for value in keys)
        self._keys: Sequence[Any] = array("q", keys) if fits_int64 else keys  # 8 bytes per row
        self.columns: Sequence[str] = database.columns(f"SELECT * {self._from}")

    def __len__(self) -> int:
        return len(self._keys)

    def row(self, index: int) -> Row:
        """One row by its key."""
        return self.fetch([index])[0]

    def fetch(self, indices: Sequence[int]) -> list[Row]:
        """Several rows by their keys."""
        rows: dict[Any, Row] = {}
        row_keys = [self._keys[index] for index in indices]
        for start in range(0, len(row_keys), _KEYS_PER_QUERY):
            keys = row_keys[start : start + _KEYS_PER_QUERY]
            for names, values in self._database.rows(f"SELECT {self._key}, * {self._from} WHERE {self._key} IN", keys):
                rows[values[0]] = dict(zip(names[1:], values[1:]))
        missing = next((index for index, key in zip(indices, row_keys) if key not in rows), None)
        if missing is not None:
            raise SampleError(Issue(BAD_DATABASE, "the row is no longer there", self.location(missing)))
        return [rows[key] for key in row_keys]

    def blocks(self) -> Iterator[tuple[int, list[Row]]]:
        """All rows in the order of their keys; those that came after the keys were read are passed over."""
        for start in range(0, len(self._keys), _BLOCK):
            yield start, self.fetch(range(start, min(start + _BLOCK, len(self._keys))))

    def location(self, index: int) -> Location:
        """Database, and number of the row."""
        return Location(self._database.name, row=index, index=index, field=self._table)

    def split(self, index: int) -> str | None:
        """Databases have no splits."""
        return None


class SpooledTable:
    """The rows of a query, read in order and kept in a temporary file."""

    def __init__(self, database: Database, statement: str, name: str):
        self._database, self._name = database, name
        self._spool = Spool(lambda: (dict(zip(*row)) for row in database.rows(statement)), name)
        self.columns: Sequence[str] = database.columns(statement)

    def __len__(self) -> int:
        return len(self._spool)

    def row(self, index: int) -> Row:
        """One row."""
        row: Row = self._spool[index]
        return row

    def fetch(self, indices: Sequence[int]) -> list[Row]:
        """Several rows."""
        return [self.row(index) for index in indices]

    def blocks(self) -> Iterator[tuple[int, list[Row]]]:
        """All rows in order."""
        start, block = 0, list[Row]()
        for index in range(1 << 62):
            try:
                block.append(self._spool[index])
            except IndexError:
                break
            if len(block) == _BLOCK:
                yield start, block
                start, block = index + 1, []
        if block:
            yield start, block

    def location(self, index: int) -> Location:
        """Database, and number of the row in the result."""
        return Location(self._database.name, row=index, index=index, field=self._name)

    def split(self, index: int) -> str | None:
        """Queries have no splits."""
        return None


class SqliteFile:
    """A SQLite file, opened read-only and without locks; its statements may do nothing but select.

    Args:
        files: the dataset.
        name: of the file; one in an archive is copied to the cache.
    """

    def __init__(self, files: Files, name: str):
        self._files, self.name = files, name
        self._connection: sqlite3.Connection | None = None
        self._process = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}

    @property
    def has_log(self) -> bool:
        """Whether a write-ahead log with changes is next to it."""
        path = self._files.path(self.name)
        return path is not None and os.path.exists(log := f"{path}-wal") and os.path.getsize(log) > 0

    def tables(self) -> list[str]:
        """Names of the tables."""
        statement = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        return [str(values[0]) for _, values in self.rows(f"{statement} ORDER BY name")]

    def key(self, table: str) -> str | None:
        """The row number, under whichever of its names no column has."""
        if table not in self.tables():
            return None
        columns = {name.lower() for name in self.columns(f"SELECT * FROM {self.quoted(table)}")}
        for name in ("rowid", "_rowid_", "oid"):
            if name not in columns:
                try:
                    next(self.rows(f"SELECT {name} FROM {self.quoted(table)} LIMIT 1"), None)
                    return name
                except SampleError:  # a table WITHOUT ROWID
                    return None
        return None

    def quoted(self, name: str) -> str:
        """In double quotes."""
        return '"' + name.replace('"', '""') + '"'

    def columns(self, statement: str) -> list[str]:
        """Column names of a statement."""
        try:
            cursor = self._connect().execute(f"SELECT * FROM ({statement}) LIMIT 0")
            return [str(column[0]) for column in cursor.description]
        except (sqlite3.Error, UnicodeError) as error:
            raise database_error(self.name, str(error)) from error

    def rows(self, statement: str, keys: Sequence[Any] | None = None) -> Iterator[tuple[list[str], tuple[Any, ...]]]:
        """Column names and values of each row."""
        marks = "" if keys is None else f" ({', '.join('?' * len(keys))})"
        try:
            cursor = self._connect().execute(statement + marks, keys or ())
            names = [column[0] for column in cursor.description or ()]
            for row in cursor:
                yield names, row
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise database_error(self.name, str(error)) from error

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None or self._process != os.getpid():
            path = self._files.path(self.name) or str(cached_file(self._cache_key(), self._copy))
            address = f"file:{quote(os.path.abspath(path))}?mode=ro&immutable=1"
            connection = sqlite3.connect(address, uri=True, check_same_thread=False)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE)
            connection.text_factory = _text
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.set_authorizer(_authorize)
            self._connection, self._process = connection, os.getpid()
        return self._connection

    def _cache_key(self) -> str:
        return "\0".join((self._files.root, self.name, self._files.fingerprint(self.name), "sqlite 1"))

    def _copy(self, target: Any) -> None:
        with self._files.open(self.name) as stream:
            while piece := stream.read(1 << 20):
                target.write(piece)


def _authorize(action: int, first: str | None, second: str | None, *_: Any) -> int:
    """Let a statement select, and nothing else: no write, no PRAGMA, no ATTACH, no extension."""
    if action == sqlite3.SQLITE_FUNCTION and second == "load_extension":
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY


def _text(raw: bytes) -> str:
    """Text of a column; what is not UTF-8 becomes U+FFFD, which the check of rows reports."""
    return raw.decode("utf-8", "replace")


def _check_options(options: Mapping[str, Any]) -> None:
    names = {option.name for option in FORMAT.options} | {"task", "split"}
    unknown = next((name for name in options if name not in names), None)
    if unknown is not None:
        raise UsageError(
            f"a database has no option {unknown!r}", code="data-option-unknown", param="data_option",
            expected=", ".join(nearest(unknown, names) or sorted(names)), hint="{data_option=table=NAME}",
        )  # fmt: skip


def example(folder: Path) -> Path:
    """A database of one table with twelve reviews."""
    folder.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(folder / "reviews.db")
    with connection:
        connection.execute("CREATE TABLE reviews (id INTEGER PRIMARY KEY, text TEXT, label INTEGER)")
        rows = [(f"review {number}", number % 2) for number in range(12)]
        connection.executemany("INSERT INTO reviews (text, label) VALUES (?, ?)", rows)
    connection.close()
    return folder / "reviews.db"


FORMAT = Format(
    "sql", "database", "a SQLite file, or a URL such as postgresql://host/name",
    (BAD_DATABASE, SEVERAL_TABLES, WRITE_AHEAD_LOG, *ROW_ISSUES), detect, scan, example,
    options=(
        FormatOption("table", "table to read"),
        FormatOption("query", "one SELECT statement whose rows to read"),
        *ROW_OPTIONS,
    ),
    unit="row",
)  # fmt: skip
