# SPDX-License-Identifier: Apache-2.0
"""Databases other than SQLite through SQLAlchemy: each statement in a transaction that is read-only and rolled back."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from fewbit.data.types import Issue, IssueType, Location, SampleError, Severity
from fewbit.errors import DataError, UsageError, require

BAD_DATABASE = IssueType(
    "bad-database", Severity.ERROR, "database that cannot be read",
    "check the query, the file, or the address and the rights of the user", "raise",
)  # fmt: skip
_READ_ONLY = {"mysql": "SET TRANSACTION READ ONLY", "mariadb": "SET TRANSACTION READ ONLY"}
_ROWS_PER_FETCH = 1000


class SqlAlchemyDatabase:
    """A database behind a URL.

    Args:
        url: of SQLAlchemy, with the password; errors show it without.
    """

    def __init__(self, url: str):
        self._url, self.name = url, without_password(url)
        self._engine_of_process: tuple[int, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_engine_of_process": None}

    def tables(self) -> list[str]:
        """Names of the tables."""
        return sorted(self._inspector().get_table_names())

    def key(self, table: str) -> str | None:
        """The primary key, if it is one column."""
        if table not in self.tables():
            return None
        columns = self._inspector().get_pk_constraint(table)["constrained_columns"]
        return self.quoted(columns[0]) if len(columns) == 1 else None

    def quoted(self, name: str) -> str:
        """In the quotes of this database."""
        return str(self._engine().dialect.identifier_preparer.quote(name))

    def columns(self, statement: str) -> list[str]:
        """Column names of a statement."""
        first = next(self.rows(statement), None)
        return first[0] if first is not None else []

    def rows(self, statement: str, keys: Sequence[Any] | None = None) -> Iterator[tuple[list[str], tuple[Any, ...]]]:
        """Column names and values of each row."""
        sqlalchemy = require("sqlalchemy", extra="sql", purpose="databases")
        arguments = {f"key{number}": value for number, value in enumerate(keys or ())}
        marks = f" ({', '.join(f':{name}' for name in arguments)})" if keys is not None else ""
        bound = statement.replace(":", "\\:") + marks
        engine = self._engine()
        try:
            with engine.connect() as connection:
                options = {"stream_results": True, "yield_per": _ROWS_PER_FETCH}
                if engine.dialect.name == "postgresql":
                    options["postgresql_readonly"] = True
                connection = connection.execution_options(**options)
                if engine.dialect.name in _READ_ONLY:
                    connection.exec_driver_sql(_READ_ONLY[engine.dialect.name])
                result = connection.execute(sqlalchemy.text(bound), arguments)
                names = list(result.keys())
                for row in result:
                    yield names, tuple(map(_json_value, row))
                connection.rollback()
        except (sqlalchemy.exc.SQLAlchemyError, OSError) as error:
            raise self._error(error) from error

    def _inspector(self) -> Any:
        sqlalchemy = require("sqlalchemy", extra="sql", purpose="databases")
        try:
            return sqlalchemy.inspect(self._engine())
        except (sqlalchemy.exc.SQLAlchemyError, OSError) as error:
            raise self._error(error) from error

    def _engine(self) -> Any:
        if self._engine_of_process is None or self._engine_of_process[0] != os.getpid():
            sqlalchemy = require("sqlalchemy", extra="sql", purpose="databases")
            url = re.sub(r"^postgres(?=[:+])", "postgresql", self._url)  # as some hosts still write it
            try:
                # No pool: a connection ends with the statement it was opened for, also one that is not read to its end.
                engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool)
            except ImportError as error:
                raise DataError(
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
            self._engine_of_process = (os.getpid(), engine)
        return self._engine_of_process[1]

    def _error(self, error: Exception) -> SampleError:
        reason = str(getattr(error, "orig", None) or error).partition("\n")[0]
        password = re.search(r"://[^/@]*:(.+)@", self._url)
        return database_error(self.name, reason.replace(password[1], "***") if password else reason)


def database_error(name: str, reason: str) -> SampleError:
    """What any failure of a database becomes."""
    return SampleError(Issue(BAD_DATABASE, reason[:300], Location(name)))


def without_password(url: str) -> str:
    """A URL as it may be shown; passwords may hold any character.

    >>> without_password("postgresql://me:p/w@x@host/db?sslpassword=s")
    'postgresql://me:***@host/db?sslpassword=***'
    """
    masked = re.sub(r"(://[^/:@]*:).*@", r"\1***@", url)
    return re.sub(r"(?i)([?&][\w-]*(?:password|token|secret|key)[\w-]*=)[^&]*", r"\1***", masked)


def _json_value(value: Any) -> Any:
    """Values as JSON has them."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if value is None or isinstance(value, str | int | float | bool | bytes | list | dict):
        return value
    return str(value)
