# SPDX-License-Identifier: Apache-2.0
"""Databases (claim 3.14): SQLite files, SQL URLs, tables and queries; never written to."""

from __future__ import annotations

import hashlib
import pickle
import random
import sqlite3
import zipfile

import pytest

from fewbit.data.formats import sql
from fewbit.data.formats.sql import without_password
from fewbit.data.hub import is_database_url
from fewbit.data.opening import open_source, scan_source
from fewbit.errors import DataError, FewbitError, MissingLibraryError, UsageError


def make(path, *statements):
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return path


@pytest.fixture
def reviews(tmp_path):
    path = make(tmp_path / "rows.db", "CREATE TABLE reviews (id INTEGER PRIMARY KEY, text TEXT, label TEXT)")
    connection = sqlite3.connect(path)
    with connection:
        rows = [(3 * number, f"text {number}", ("good", "bad")[number % 2]) for number in range(2500)]
        connection.executemany("INSERT INTO reviews VALUES (?, ?, ?)", rows)
        connection.execute("DELETE FROM reviews WHERE id = 30")
    connection.close()
    return path


def rows(source):
    return [source[index] for index in range(len(source))]


@pytest.mark.parametrize("name", ["rows.db", "sqlite:///{folder}/rows.db", "sqlite+pysqlite:///{folder}/rows.db"])
def test_a_file_and_a_url_are_a_dataset(reviews, name):
    if "pysqlite" in name:
        pytest.importorskip("sqlalchemy")
    data = name.format(folder=reviews.parent) if "/" in name else reviews
    source, report = open_source(data)
    assert report.data_format == "sql" and len(source) == 2499
    assert source[2000] == {"text": "text 2001", "label": 0, "id": 6003} and source.facts["classes"] == ["bad", "good"]
    assert [row["id"] for row in source.fetch([2400, 3, 3])] == [7203, 9, 9]
    assert source.location(5).row == 5 and pickle.loads(pickle.dumps(source))[7] == source[7]


def test_nothing_is_written_next_to_the_database_or_into_it(reviews):
    before = hashlib.sha256(reviews.read_bytes()).hexdigest()
    scan_source(reviews, depth="full")
    assert hashlib.sha256(reviews.read_bytes()).hexdigest() == before
    assert [path.name for path in reviews.parent.iterdir()] == ["rows.db"]


def test_a_query_is_read_and_may_do_nothing_but_select(reviews):
    source, _ = open_source(
        reviews, data_option={"query": "SELECT text, label FROM reviews WHERE id < 30 ORDER BY id DESC;"}
    )
    assert len(source) == 10 and source[0]["text"] == "text 9"
    with_clause = "WITH few AS (SELECT * FROM reviews LIMIT 2) SELECT count(*) AS n FROM few"
    assert rows(open_source(reviews, data_option={"query": with_clause})[0]) == [{"n": 2}]
    for query in (
        "DELETE FROM reviews",
        "SELECT 1; DELETE FROM reviews",
        "PRAGMA user_version = 3",
        "-- SELECT\nDROP TABLE x",
    ):
        with pytest.raises(UsageError, match="not one SELECT statement"):
            open_source(reviews, data_option={"query": query})
    semicolon_in_text = "SELECT ';' AS text -- ; \n FROM reviews LIMIT 1"
    assert rows(open_source(reviews, data_option={"query": semicolon_in_text})[0]) == [{"text": ";"}]
    sneaky = "WITH x AS (SELECT 1) INSERT INTO reviews SELECT 1, 'a', 'b'"
    with pytest.raises(DataError):
        rows(open_source(reviews, data_option={"query": sneaky})[0])
    with pytest.raises(DataError, match="no such column"):
        open_source(reviews, data_option={"query": "SELECT absent FROM reviews"})


def test_several_tables_are_listed(tmp_path):
    path = make(tmp_path / "a.db", "CREATE TABLE one (text)", "CREATE TABLE two (text)", "INSERT INTO two VALUES ('x')")
    with pytest.raises(DataError, match="several tables") as caught:
        open_source(path)
    assert caught.value.code == "several-tables" and "one, two" in str(caught.value)
    assert "--data-option table=NAME" in caught.value.text("cli")
    assert rows(open_source(path, data_option={"table": "two"})[0]) == [{"text": "x"}]
    with pytest.raises(UsageError, match="no table 'tow'") as caught:
        open_source(path, data_option={"table": "tow"})
    assert caught.value.expected == "two"


def test_tables_without_row_numbers_views_and_odd_names(tmp_path):
    path = make(
        tmp_path / "a.db",
        "CREATE TABLE plain (name TEXT PRIMARY KEY, text TEXT) WITHOUT ROWID",
        "INSERT INTO plain VALUES ('b', 'second'), ('a', 'first')",
        "CREATE VIEW loud AS SELECT upper(text) AS text FROM plain",
        'CREATE TABLE "it\'s ""odd"" ?" (rowid TEXT, text TEXT)',
        'INSERT INTO "it\'s ""odd"" ?" VALUES (\'mine\', \'x\')',
    )
    assert [row["text"] for row in rows(open_source(path, data_option={"table": "plain"})[0])] == ["first", "second"]
    assert {row["text"] for row in rows(open_source(path, data_option={"table": "loud"})[0])} == {"FIRST", "SECOND"}
    assert rows(open_source(path, data_option={"table": 'it\'s "odd" ?'})[0]) == [{"text": "x", "rowid": "mine"}]


def test_inside_a_zip(reviews, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(reviews, "rows.db")
    assert open_source(tmp_path / "a.zip")[0][4]["text"] == "text 4"


def test_changes_that_are_not_in_the_file_yet_are_told(tmp_path):
    connection = sqlite3.connect(tmp_path / "a.db")
    connection.execute("PRAGMA journal_mode = WAL")
    with connection:
        connection.execute("CREATE TABLE t (text)")
        connection.execute("INSERT INTO t VALUES ('x')")
    report = scan_source(tmp_path / "a.db")[1]
    connection.close()
    assert report.counts["write-ahead-log"] == 1


def test_text_that_is_not_utf8_is_told(tmp_path):
    path = make(
        tmp_path / "a.db", "CREATE TABLE t (text TEXT)", "INSERT INTO t VALUES (CAST(x'636166e9' AS TEXT)), ('ok')"
    )
    source, report = scan_source(path, depth="full")
    assert source[0]["text"] == "caf\ufffd" and report.counts["replacement-character"] == 1


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 2"])
def test_a_file_that_is_only_called_a_database_is_an_issue(tmp_path, content):
    (tmp_path / "a.sqlite").write_bytes(content)
    with pytest.raises(DataError) as caught:
        open_source(tmp_path / "a.sqlite")
    assert caught.value.code == "bad-database" and "a.sqlite" in str(caught.value)


def test_a_missing_driver_is_a_missing_library(monkeypatch):
    sqlalchemy = pytest.importorskip("sqlalchemy")

    def create_engine(*args, **kwargs):
        raise ModuleNotFoundError("No module named 'psycopg'")

    monkeypatch.setattr(sqlalchemy, "create_engine", create_engine)
    with pytest.raises(MissingLibraryError) as caught:
        open_source("postgresql://me:hunter2@host/db")
    assert caught.value.code == "library-missing" and caught.value.exit_code == MissingLibraryError.exit_code


def test_damaged_databases_give_rows_or_typed_issues(reviews):
    original = reviews.read_bytes()
    chance = random.Random(3)
    for _ in range(60):
        content = bytearray(original)
        for _ in range(20):
            content[chance.randrange(len(content))] = chance.randrange(256)
        content[:16] = original[:16]
        reviews.write_bytes(content[: chance.randrange(len(content))] if chance.random() < 0.3 else content)
        try:
            source, _ = open_source(reviews, depth="full", on_error="drop")
            source[0]
        except (DataError, IndexError):
            pass


def test_passwords_are_never_shown(monkeypatch):
    assert without_password("mysql+pymysql://root:p@ss:w/rd@host:3306/db") == "mysql+pymysql://root:***@host:3306/db"
    pytest.importorskip("sqlalchemy")
    with pytest.raises(FewbitError) as caught:
        open_source("postgresql://me:hunter2@127.0.0.1:1/none")
    assert "hunter2" not in str(caught.value) and "me:***@" in str(caught.value)


def test_which_urls_are_databases():
    assert is_database_url("postgresql+psycopg://host/db") and is_database_url("SQLITE:///x.db")
    assert not is_database_url("s3://bucket/a.db") and not is_database_url("C:/rows.db")


def test_sqlalchemy_is_read_only_and_uses_the_primary_key(reviews):
    pytest.importorskip("sqlalchemy")
    url = f"sqlite+pysqlite:///{reviews}"
    source, _ = open_source(url, data_option={"query": "SELECT id, text FROM reviews WHERE text LIKE '%:1' OR id = 6"})
    assert rows(source) == [{"id": 6, "text": "text 2"}]
    with pytest.raises(UsageError, match="no option 'delimiter'"):
        open_source(url, data_option={"delimiter": ";"})
    with pytest.raises(DataError, match="no file or folder"):
        open_source("sqlite:///gone.db")
    table = sql.KeyedTable(sql.SqlAlchemyDatabase(url), "reviews", "id")
    assert [index for index, _ in table.blocks()] == [0, 1000, 2000]
