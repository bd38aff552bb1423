# SPDX-License-Identifier: Apache-2.0
"""Parquet, Arrow and Feather files."""

from __future__ import annotations

import datetime
import gzip
import io
import pickle
import random
import zipfile
from decimal import Decimal

import numpy as np
import pytest

from fewbit.data.opening import open_source, scan_source
from fewbit.data.rows import arrow as _arrow
from fewbit.data.types import SampleError
from fewbit.errors import DataError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
feather = pytest.importorskip("pyarrow.feather")


def columns(count=50):
    rows = range(count)
    return pa.table({"i": list(rows), "t": [f"row {i}" for i in rows], "n": [{"a": [i]} for i in rows]})


def write(path, table, kind, group=20):
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=group)
    elif kind == "feather":
        feather.write_feather(table, str(path), compression="lz4", chunksize=group)
    else:
        with pa.OSFile(str(path), "wb") as sink:
            make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
            with make(sink, table.schema) as writer:
                writer.write_table(table, max_chunksize=group)
    return path


KINDS = {"parquet": "a.parquet", "feather": "a.feather", "file": "a.arrow", "stream": "a.arrow"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("packed", [False, True])
def test_rows_in_order_at_random_and_inside_an_archive(tmp_path, kind, packed):
    path = write(tmp_path / KINDS[kind], columns(), kind)
    if packed:
        with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(path, path.name)
        path = tmp_path / "a.zip"
    source, report = open_source(path)
    assert report.data_format == ("parquet" if kind == "parquet" else "arrow") and len(source) == 50
    for index in random.Random(0).sample(range(50), 12):
        assert source[index]["i"] == index and source[index]["t"] == f"row {index}"
    assert [row["i"] for row in source.fetch([49, 0, 21, 21])] == [49, 0, 21, 21]
    assert source.location(45).row == 45
    again = pickle.loads(pickle.dumps(source))
    assert again[33] == source[33]


def test_two_groups_are_held_and_each_is_decoded_once(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", columns(100), "parquet", group=10)
    source, _ = open_source(path)
    decoded = []
    batches = _arrow._Parquet.batches

    def counted(self, group, without):
        decoded.append(group)
        return batches(self, group, without)

    monkeypatch.setattr(_arrow._Parquet, "batches", counted)
    source.fetch([95, 5, 96, 6, 55, 97])
    assert decoded == [0, 5, 9]
    source[55], source[99]
    assert decoded == [0, 5, 9] and len(source.table._groups) == 2


def test_a_group_too_large_to_hold_is_streamed(tmp_path, monkeypatch):
    monkeypatch.setattr(_arrow, "CACHED_GROUP_BYTES", 100)
    source, _ = open_source(write(tmp_path / "a.parquet", columns(3000), "parquet", group=3000))
    assert source[2900]["i"] == 2900 and source.table._groups.get(0, list) is None


def test_shards_and_splits_by_name(tmp_path):
    for name, rows in (("train-00000-of-00002", 3), ("train-00001-of-00002", 2), ("validation", 1)):
        pq.write_table(pa.table({"text": [f"{name} {i}" for i in range(rows)]}), tmp_path / f"{name}.parquet")
    (tmp_path / "README.md").write_text("about")
    source, report = open_source(tmp_path)
    assert [source[index]["text"].split()[0] for index in range(6)] == (
        ["train-00000-of-00002"] * 3 + ["train-00001-of-00002"] * 2 + ["validation"]
    )
    assert source.facts["splits"] == {"train": 5, "val": 1} and report.counts == {"ignored-file": 1}
    assert str(source.location(4)) == "train-00001-of-00002.parquet row 1"
    assert [open_source(tmp_path, split="val")[0][0]["text"]] == ["validation 0"]


def test_packed_parquet_is_unpacked_whole(tmp_path):
    write(tmp_path / "a.parquet", columns(), "parquet")
    (tmp_path / "b.parquet.gz").write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
    (tmp_path / "a.parquet").unlink()
    assert open_source(tmp_path)[0][42]["i"] == 42


def test_dates_and_decimals_become_plain_values(tmp_path):
    moment = datetime.datetime(2024, 1, 2, 3, 4)
    table = pa.table({"when": [moment], "price": [Decimal("1.50")], "deep": [[{"day": moment.date()}]]})
    source, _ = open_source(write(tmp_path / "a.parquet", table, "parquet"))
    assert source[0] == {"when": "2024-01-02T03:04:00", "price": 1.5, "deep": [{"day": "2024-01-02"}]}


def damaged_group(tmp_path):
    """Three row groups of ten, the second one damaged."""
    table = pa.table({"i": list(range(30)), "t": [f"row {i}" * 20 for i in range(30)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10, compression="zstd", use_dictionary=False)
    chunk = pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(1).column(1)
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    end = chunk.data_page_offset + chunk.total_compressed_size
    content[end - 40 : end] = bytes(40)
    (tmp_path / "a.parquet").write_bytes(content)
    return tmp_path / "a.parquet"


def test_a_damaged_row_group_costs_its_own_rows(tmp_path):
    path = damaged_group(tmp_path)
    report = scan_source(path, depth="full")[1]
    assert report.counts == {"bad-parquet": 1} and report.affected["bad-parquet"] == 10
    assert "row group 1" in report.errors[0].message and report.errors[0].location.row == 10
    with pytest.raises(DataError, match="Parquet file or row group"):
        open_source(path, depth="full")
    source, report = open_source(path, depth="full", on_error="drop")
    assert [source[index]["i"] for index in range(len(source))] == [*range(10), *range(20, 30)]
    assert source.location(10).row == 20
    lazy, _ = open_source(path)  # not known before it is decoded
    assert lazy[25]["i"] == 25
    with pytest.raises(SampleError) as caught:
        lazy[15]
    assert caught.value.code == "bad-parquet"


def test_a_repaired_copy_leaves_out_what_cannot_be_read(tmp_path):
    from fewbit.api.data import fix_dataset

    (tmp_path / "data").mkdir()
    damaged_group(tmp_path / "data")
    write(tmp_path / "data" / "clean.parquet", pa.table({"i": [100], "t": ["x"]}), "parquet")
    clean = (tmp_path / "data" / "clean.parquet").read_bytes()
    report = fix_dataset(tmp_path / "data", tmp_path / "out")
    assert report.facts["changes"] == ["a.parquet: 10 rows left out"] and not report.facts["copy"].errors
    assert (tmp_path / "out" / "clean.parquet").read_bytes() == clean
    assert pq.read_table(tmp_path / "out" / "a.parquet")["i"].to_pylist() == [*range(10), *range(20, 30)]


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_files_give_rows_or_typed_issues(tmp_path, kind):
    path = write(tmp_path / KINDS[kind], columns(60), kind)
    original = path.read_bytes()
    chance = random.Random(1)
    for _ in range(60):
        content = bytearray(original)
        for _ in range(3):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content[: chance.randrange(len(content))] if chance.random() < 0.3 else content)
        try:
            source, _ = open_source(path, depth="full", on_error="drop")
            for index in range(min(len(source), 100)):
                source[index]
        except DataError:
            pass


def test_text_that_is_not_utf8_is_an_issue_of_its_row(tmp_path):
    texts = pa.array([b"ok", b"caf\xe9", b"fine"]).view(pa.string())
    for kind in ("parquet", "file"):
        path = write(tmp_path / KINDS[kind], pa.table({"t": texts, "i": [0, 1, 2]}), kind)
        report = scan_source(path, depth="full")[1]
        assert report.counts == {"bad-encoding": 1} and report.errors[0].location.row == 1
        source, _ = open_source(path, depth="full", on_error="drop")
        assert [source[index]["i"] for index in range(len(source))] == [0, 2]
        with pytest.raises(SampleError):
            open_source(path)[0][1]


def test_columns_of_the_same_name(tmp_path):
    table = pa.table([pa.array([1]), pa.array([2])], names=["x", "x"])
    report = scan_source(write(tmp_path / "a.parquet", table, "parquet"))[1]
    assert report.counts == {"duplicate-key": 1}
    source, _ = open_source(tmp_path / "a.parquet", on_error={"duplicate-key": "keep"})
    assert source[0] == {"x": 2}


def test_feather_of_version_1_is_told_and_not_read(tmp_path):
    (tmp_path / "a.feather").write_bytes(b"FEA1" + bytes(40) + b"FEA1")  # pyarrow's reader dies of damaged ones
    report = scan_source(tmp_path / "a.feather")[1]
    assert "version 1" in report.errors[0].message and report.errors[0].code == "bad-arrow"


def test_what_is_no_parquet_is_an_issue(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError) as caught:
        open_source(tmp_path / "a.parquet")
    assert caught.value.code in ("bad-parquet", "data-issues") and "a.parquet" in str(caught.value)


def png(color, mode="RGB"):
    from PIL import Image

    stream = io.BytesIO()
    Image.new(mode, (4, 3), color).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize("wrap", [lambda content: {"bytes": content, "path": None}, lambda content: content])
def test_image_bytes_become_images_and_labels_classes(tmp_path, wrap):
    contents = [png((10 * i, 0, 0)) for i in range(6)]
    table = pa.table({"picture": [wrap(content) for content in contents], "label": [i % 2 for i in range(6)]})
    path = write(tmp_path / "a.parquet", table, "parquet", group=2)
    source, report = open_source(path, depth="full")
    sample = source[3]
    assert sample["image"].shape == (3, 4, 3) and sample["image"][0, 0].tolist() == [30, 0, 0] and sample["label"] == 1
    assert "picture" not in sample and source.facts["classes"] == ["0", "1"] and source.strata() == ["0", "1"] * 3
    assert not report.errors and source.facts["task"] == "image-classification"


def test_labels_are_read_without_the_images(tmp_path, monkeypatch):
    table = pa.table({"image": [{"bytes": png(0), "path": "a.png"}] * 6, "label": [0, 1, 2] * 2})
    write(tmp_path / "a.parquet", table, "parquet", group=2)
    read = []
    batches = _arrow._Parquet.batches
    monkeypatch.setattr(
        _arrow._Parquet, "batches", lambda self, group, without: read.append(without) or batches(self, group, without)
    )
    source, _ = open_source(tmp_path / "a.parquet")
    assert source.facts["classes"] == ["0", "1", "2"]
    assert read[:3] == [()] * 3 and len(read) > 3 and set(read[3:]) == {("image",)}  # one look at the first rows


def test_masks_keep_their_numbers_and_damaged_images_are_told(tmp_path):
    table = pa.table({"image": [png(0), png(9)], "annotation": [png(7, "L"), png(1, "L")]})
    source, _ = open_source(write(tmp_path / "a.parquet", table, "parquet"))
    assert source[0]["mask"].tolist() == [[7] * 4] * 3
    table = pa.table({"image": [png(0), png(9)[:40], None]})
    path = write(tmp_path / "a.parquet", table, "parquet")
    report = scan_source(path, depth="full")[1]
    (issue,) = report.errors
    assert issue.code.startswith("image-") and issue.location.row == 1 and issue.location.field == "image"
    assert len(open_source(path, depth="full", on_error="drop")[0]) == 2


def test_class_names_of_datasets_inside_parquet(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    rows = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, 1, -1]}, features=features)
    rows.to_parquet(str(tmp_path / "train.parquet"))
    source, _ = open_source(tmp_path)
    assert source.facts["classes"] == ["neg", "pos"] and [source[i]["label"] for i in range(3)] == [1, 1, -1]


def test_embeddings_stay_lists(tmp_path):
    table = pa.table({"vector": [np.arange(3, dtype=np.float32)] * 2})
    assert open_source(write(tmp_path / "a.parquet", table, "parquet"))[0][1]["vector"] == [0.0, 1.0, 2.0]
