# SPDX-License-Identifier: Apache-2.0
import pickle
import random

import pytest

from fewbit.data.tables import parquet
from fewbit.data.tables.parquet import ParquetTable

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def make(path, rows=5000, group=2000):
    table = pa.table(
        {"i": list(range(rows)), "t": [f"row {i}" for i in range(rows)], "n": [{"a": [i]} for i in range(rows)]}
    )
    pq.write_table(table, path, row_group_size=group)
    return ParquetTable(path, path.name)


def test_rows_in_order_and_at_random_are_the_same(tmp_path):
    table = make(tmp_path / "a.parquet")
    rows = list(table.rows())
    assert len(rows) == table.count() == 5000
    for index in random.Random(0).sample(range(5000), 50):
        assert table.row(index) == rows[index] and rows[index].values["n"] == {"a": [index]}


def test_a_row_group_too_large_to_keep_is_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_KEPT_BYTES", 1000)
    table = make(tmp_path / "a.parquet")
    assert table.row(4321).values["i"] == 4321 and not table._kept


def test_a_table_goes_to_another_process(tmp_path):
    table = make(tmp_path / "a.parquet", 10)
    assert table.row(3).values["i"] == pickle.loads(pickle.dumps(table)).row(3).values["i"]


def test_damaged_files_are_faults(tmp_path):
    path = tmp_path / "a.parquet"
    make(path, 300, 100)
    whole = path.read_bytes()
    rng = random.Random(1)
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(3):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data[: rng.randrange(len(data))] if rng.random() < 0.3 else data)
        table = ParquetTable(path, "a.parquet")
        for row in [*table.rows(), *(table.row(i) for i in range(min(3, table.count())))]:
            assert row.values is not None or row.faults


def test_text_that_is_not_utf8_is_a_fault_of_its_row(tmp_path):
    texts = pa.array([b"ok", b"caf\xe9", b"ok"]).view(pa.string())
    pq.write_table(pa.table({"t": texts}), tmp_path / "a.parquet")
    table = ParquetTable(tmp_path / "a.parquet", "a.parquet")
    assert [[f.code for f in row.faults] for row in table.rows()] == [[], ["bad-encoding"], []]
