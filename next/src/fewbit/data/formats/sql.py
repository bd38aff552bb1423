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
from typing import Any
from urllib.parse import quote

from fewbit.data.files import Folder
from fewbit.data.rows.arrow import json_value
from fewbit.data.rows.source import ROW_ISSUES, ROW_OPTIONS, row_source
from fewbit.data.rows.table import BLOCK, ListTable, PerProcess, Row, Table, local_copy
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
from fewbit.errors import MissingLibraryError, UsageError, nearest, require

SUFFIXES = (".db", ".sqlite", ".sqlite3", ".db3")
MAGIC = b"SQLite format 3\0"
MOST_VALUE = 64 << 20
"""Bytes of one value."""
_KEYS_PER_QUERY = 500
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_READING = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
_READ_ONLY = {"mysql": "SET TRANSACTION READ ONLY", "mariadb": "SET TRANSACTION READ ONLY"}

BAD_DATABASE = IssueType(
    "bad-database", Severity.ERROR, "database that cannot be read",
    "check the query, the file, or the address and the rights of the user", "raise",
)  # fmt: skip
SEVERAL_TABLES = IssueType(
    "several-tables", Severity.ERROR, "database of several tables", "choose one: {data_option=table=NAME}", "raise"
)
WRITE_AHEAD_LOG = IssueType(
    "write-ahead-log", Severity.WARNING, "rows that are not in the database file yet, and are not read",
    "close the program that writes, or run PRAGMA wal_checkpoint",
)  # fmt: skip

Rows = Iterator[tuple[list[str], tuple[Any, ...]]]
"""Column names and values of each row."""


def detect(files: Files) -> Detection | None:
    """One SQLite file, by its first bytes; for a file that is only called so, what is wrong with it."""
    alone = len(files.names()) == 1
    names = [name for name in files.names()[:100] if name.lower().endswith(SUFFIXES) or alone]
    if any(files.read(name, 16) == MAGIC for name in names[:8]):
        return Detection(0.95 if alone else 0.6, "a SQLite database")
    return Detection(0.6, "called a database") if alone and names[0].lower().endswith(SUFFIXES) else None


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> Source:
    """Choose the table and read its keys."""
    names = [name for name in files.names() if files.read(name, 16) == MAGIC]
    if names:
        return _scan(SqliteFile(files, names[0]), report, depth, options)
    name = next((name for name in files.names() if name.lower().endswith(SUFFIXES)), files.root)
    report.add(BAD_DATABASE, "it does not begin as a SQLite file does", Location(name))
    return row_source(ListTable([]), None, report, depth="index", options={})


def scan_url(url: str, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> Source:
    """The rows of a database behind a URL such as `postgresql://user:password@host/name`.

    `sqlite:///file.db` is read like the file; other databases need SQLAlchemy and their own driver.
    """
    names = {option.name for option in FORMAT.options} | {"task", "split"}
    unknown = next((name for name in options if name not in names), None)
    if unknown is not None:
        raise UsageError(
            f"a database has no option {unknown!r}", code="data-option-unknown", param="data_option",
            expected=", ".join(nearest(unknown, names) or sorted(names)), hint="{data_option=table=NAME}",
        )  # fmt: skip
    report.data_format, report.source = "sql", without_password(url)
    path = re.fullmatch(r"sqlite:///([^?]+)(\?.*)?", url)
    if path is None:
        return _scan(SqlAlchemyDatabase(url), report, depth, options)
    file = Path(path[1])
    if not file.is_file():
        from fewbit.data.opening import missing_path

        raise missing_path(str(file), file)
    return _scan(SqliteFile(Folder(file, url, report), file.name), report, depth, options)


def _scan(database: Database, report: DataReport, depth: Depth, options: Mapping[str, Any]) -> Source:
    try:
        table = _table(database, report, options)
        return row_source(table, None, report, depth=depth, options=options)
    except SampleError as error:
        report.add_error(error)
        return row_source(ListTable([]), None, report, depth="index", options={})


def _table(database: Database, report: DataReport, options: Mapping[str, Any]) -> Table:
    query, name = options.get("query"), options.get("table")
    if isinstance(database, SqliteFile) and database.has_log:
        report.add(WRITE_AHEAD_LOG, f"{database.name}-wal is next to it", Location(database.name), samples=0)
    if query is not None:
        return SpooledTable(database, single_select(str(query)), "the query")
    tables = database.tables()
    if name is None and len(tables) != 1:
        message = f"tables: {', '.join(tables[:20])}" if tables else "it has no table"
        report.add(SEVERAL_TABLES, message, Location(database.name), samples=0)
        return ListTable([])
    name = str(name or tables[0])
    key = database.key(name)
    if key is not None:
        return KeyedTable(database, name, key)
    statement = f"SELECT * FROM {database.quoted(name)}"
    try:
        return SpooledTable(database, statement, name)  # a view, or a table without a key
    except SampleError:
        if name in tables:
            raise
        raise UsageError(
            f"the database has no table {name!r}", code="table-missing", param="data_option", where=database.name,
            expected=", ".join(nearest(name, tables) or tables[:20]) or "a database with tables",
            hint="check the spelling of {data_option=table=NAME}",
        ) from None  # fmt: skip


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


class KeyedTable(Table):
    """A table whose rows are fetched by their key."""

    def __init__(self, database: Database, table: str, key: str):
        self._database, self._table, self._key = database, table, key
        self._from = f"FROM {database.quoted(table)}"
        keys = [values[0] for _, values in database.rows(f"SELECT {key} {self._from} ORDER BY {key}")]
        fits_int64 = all(type(value) is int and -(2**63) <= value < 2**63 for value in keys)
        self._keys: Sequence[Any] = array("q", keys) if fits_int64 else keys  # 8 bytes per row
        self.columns = database.columns(f"SELECT * {self._from}")

    def __len__(self) -> int:
        return len(self._keys)

    def fetch(self, indices: Sequence[int]) -> list[Row]:
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

    def location(self, index: int) -> Location:
        return Location(self._database.name, row=index, index=index, field=self._table)


class SpooledTable(Table):
    """The rows of a query, read in order and kept in a temporary file."""

    def __init__(self, database: Database, statement: str, name: str):
        self._database, self._name = database, name
        self._spool = Spool(lambda: (dict(zip(*row)) for row in database.rows(statement)), name)
        self.columns = database.columns(statement)

    def __len__(self) -> int:
        return len(self._spool)

    def fetch(self, indices: Sequence[int]) -> list[Row]:
        return [self._spool[index] for index in indices]

    def blocks(self) -> Iterator[tuple[int, list[Row]]]:
        start, block = 0, list[Row]()
        while self._spool.has(start + len(block)):
            block.append(self._spool[start + len(block)])
            if len(block) == BLOCK:
                yield start, block
                start, block = start + BLOCK, []
        if block:
            yield start, block

    def location(self, index: int) -> Location:
        return Location(self._database.name, row=index, index=index, field=self._name)


class SqliteFile:
    """A SQLite file, opened read-only and without locks; its statements may do nothing but select.

    Like `SqlAlchemyDatabase` it knows its `tables`, the `key` of a table (quoted; `None` if there is none),
    the `columns` of a SELECT statement and its `rows`; a statement that ends with IN is given the keys.

    Args:
        files: the dataset.
        name: of the file; one in an archive is copied to the cache.
    """

    def __init__(self, files: Files, name: str):
        self._files, self.name = files, name
        self._connections = PerProcess()

    @property
    def has_log(self) -> bool:
        """Whether a write-ahead log with changes is next to it."""
        path = self._files.path(self.name)
        return path is not None and os.path.exists(log := f"{path}-wal") and os.path.getsize(log) > 0

    def tables(self) -> list[str]:
        statement = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        return [str(values[0]) for _, values in self.rows(f"{statement} ORDER BY name")]

    def key(self, table: str) -> str | None:
        if table not in self.tables():
            return None
        columns = {name.lower() for name in self.columns(f"SELECT * FROM {self.quoted(table)}")}
        name = next((name for name in ("rowid", "_rowid_", "oid") if name not in columns), None)
        try:
            next(self.rows(f"SELECT {name} FROM {self.quoted(table)} LIMIT 1"), None)
        except SampleError:  # a table WITHOUT ROWID
            return None
        return name

    def quoted(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def columns(self, statement: str) -> list[str]:
        try:
            cursor = self._connections.get("", self._connect).execute(f"SELECT * FROM ({statement}) LIMIT 0")
            return [str(column[0]) for column in cursor.description]
        except (sqlite3.Error, UnicodeError) as error:
            raise _database_error(self.name, str(error)) from error

    def rows(self, statement: str, keys: Sequence[Any] | None = None) -> Rows:
        marks = "" if keys is None else f" ({', '.join('?' * len(keys))})"
        try:
            cursor = self._connections.get("", self._connect).execute(statement + marks, keys or ())
            names = [column[0] for column in cursor.description or ()]
            for row in cursor:
                yield names, row
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise _database_error(self.name, str(error)) from error

    def _connect(self) -> sqlite3.Connection:
        path = os.path.abspath(local_copy(self._files, self.name))
        connection = sqlite3.connect(f"file:{quote(path)}?mode=ro&immutable=1", uri=True, check_same_thread=False)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE)
        # What is not UTF-8 becomes U+FFFD, which the check of rows reports.
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.set_authorizer(_authorize)
        return connection


def _authorize(action: int, first: str | None, second: str | None, *_: Any) -> int:
    """Let a statement select, and nothing else: no write, no PRAGMA, no ATTACH, no extension."""
    if action == sqlite3.SQLITE_FUNCTION and second == "load_extension":
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY


class SqlAlchemyDatabase:
    """A database behind a URL: each statement in a transaction that is read-only and rolled back.

    Args:
        url: of SQLAlchemy, with the password; errors show it without.
    """

    def __init__(self, url: str):
        self._url, self.name = url, without_password(url)
        self._engines = PerProcess()
        require("sqlalchemy", extra="sql", purpose="databases")

    def tables(self) -> list[str]:
        return sorted(self._inspect(lambda inspector: inspector.get_table_names()))

    def key(self, table: str) -> str | None:
        if table not in self.tables():
            return None
        columns = self._inspect(lambda inspector: inspector.get_pk_constraint(table)["constrained_columns"])
        return self.quoted(columns[0]) if len(columns) == 1 else None

    def quoted(self, name: str) -> str:
        return str(self._engine().dialect.identifier_preparer.quote(name))

    def columns(self, statement: str) -> list[str]:
        first = next(self.rows(statement), None)
        return first[0] if first is not None else []

    def rows(self, statement: str, keys: Sequence[Any] | None = None) -> Rows:
        import sqlalchemy

        arguments = {f"key{number}": value for number, value in enumerate(keys or ())}
        marks = f" ({', '.join(f':{name}' for name in arguments)})" if keys is not None else ""
        bound = statement.replace(":", "\\:") + marks
        engine = self._engine()
        options = {"stream_results": True, "yield_per": BLOCK}
        options |= {"postgresql_readonly": True} if engine.dialect.name == "postgresql" else {}
        try:
            with engine.connect() as plain_connection:
                connection = plain_connection.execution_options(**options)
                if engine.dialect.name in _READ_ONLY:
                    connection.exec_driver_sql(_READ_ONLY[engine.dialect.name])
                result = connection.execute(sqlalchemy.text(bound), arguments)
                names = list(result.keys())
                for row in result:
                    yield names, tuple(map(_plain_value, row))
                connection.rollback()
        except (sqlalchemy.exc.SQLAlchemyError, OSError) as error:
            raise self._error(error) from error

    def _inspect(self, look: Any) -> Any:
        import sqlalchemy

        try:
            return look(sqlalchemy.inspect(self._engine()))
        except (sqlalchemy.exc.SQLAlchemyError, OSError) as error:
            raise self._error(error) from error

    def _engine(self) -> Any:
        return self._engines.get("", self._new_engine)

    def _new_engine(self) -> Any:
        import sqlalchemy

        url = re.sub(r"^postgres(?=[:+])", "postgresql", self._url)  # as some hosts still write it
        try:
            # No pool: a connection ends with the statement it was opened for, also one that is not read to its end.
            return sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool)
        except ImportError as error:
            raise MissingLibraryError(
                f"the driver of this database is not installed: {error}", code="library-missing", where=self.name,
                hint="pip install the driver, such as psycopg or pymysql",
            ) from error  # fmt: skip
        except sqlalchemy.exc.ArgumentError as error:
            raise UsageError(
                f"this is not the URL of a database: {self.name}", code="database-url", param="data",
                expected="dialect://user:password@host/name", hint="postgresql://user:password@host/name",
            ) from error  # fmt: skip
        except sqlalchemy.exc.SQLAlchemyError as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> SampleError:
        reason = str(getattr(error, "orig", None) or error).partition("\n")[0]
        password = re.search(r"://[^/@]*:(.+)@", self._url)
        return _database_error(self.name, reason.replace(password[1], "***") if password else reason)


Database = SqliteFile | SqlAlchemyDatabase


def _database_error(name: str, reason: str) -> SampleError:
    return SampleError(Issue(BAD_DATABASE, reason[:300], Location(name)))


def _plain_value(value: Any) -> Any:
    """Values as JSON has them; what a driver has of its own becomes text."""
    value = json_value(value)
    return value if value is None or isinstance(value, str | int | float | bool | bytes | list | dict) else str(value)


def without_password(url: str) -> str:
    """A URL as it may be shown; passwords may hold any character.

    >>> without_password("postgresql://me:p/w@x@host/db?sslpassword=s")
    'postgresql://me:***@host/db?sslpassword=***'
    """
    masked = re.sub(r"(://[^/:@]*:).*@", r"\1***@", url)
    return re.sub(r"(?i)([?&][\w-]*(?:password|token|secret|key)[\w-]*=)[^&]*", r"\1***", masked)


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
    unit="row", suffixes=SUFFIXES,
)  # fmt: skip
