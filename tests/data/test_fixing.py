# SPDX-License-Identifier: Apache-2.0
import pytest

import fewbit
from fewbit.data.formats import rows
from fewbit.errors import DataError, UsageError


@pytest.fixture
def bad(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "a"}\n{"text": \n')
    return path


def test_the_copy_is_fit_and_the_source_is_as_it_was(bad, tmp_path):
    before = bad.read_bytes()
    changes = fewbit.fix_dataset(bad, tmp_path / "new" / "deeper")
    assert any("left out" in change for change in changes) and bad.read_bytes() == before
    assert fewbit.check_dataset(tmp_path / "new" / "deeper").ok
    assert [dict(s) for s in fewbit.open_dataset(tmp_path / "new" / "deeper")] == [{"text": "a"}]


def test_an_interrupt_leaves_nothing_behind(bad, tmp_path, monkeypatch):
    def interrupted(source, out, **options):
        (out / "half").write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(rows, "fix", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fewbit.fix_dataset(bad, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.jsonl"]


@pytest.mark.parametrize("out", ["full", "bad.jsonl"])
def test_nothing_is_overwritten(bad, tmp_path, out):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(UsageError, match="not empty"):
        fewbit.fix_dataset(bad, tmp_path / out)


def test_an_empty_folder_may_be_filled(bad, tmp_path):
    (tmp_path / "empty").mkdir()
    fewbit.fix_dataset(bad, tmp_path / "empty")
    assert fewbit.check_dataset(tmp_path / "empty").ok


def test_what_is_no_folder_cannot_be_fixed(tmp_path):
    with pytest.raises(UsageError, match="'objects' cannot write") as caught:
        fewbit.fix_dataset([{"x": 1}], tmp_path / "out")
    assert "rows" in caught.value.expected


def test_a_dataset_of_which_nothing_is_left_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text("not json\n")
    with pytest.raises(DataError):
        fewbit.fix_dataset(tmp_path / "a.jsonl", tmp_path / "out")
    assert not (tmp_path / "out").exists()
