# SPDX-License-Identifier: Apache-2.0
"""What every dataset format must do, run over whatever the registry lists."""

import hashlib
import pickle

import numpy as np
import pytest

import fewbit
from fewbit import registry
from fewbit.data.issues import issue_types, issues_page
from fewbit.data.opening import scan_source
from fewbit.data.types import Format, Severity
from fewbit.errors import MissingLibraryError

NAMES = registry.names("data_formats")


@pytest.fixture(params=NAMES)
def example(request, tmp_path):
    """A format, and the path of its example."""
    member: Format = registry.get("data_formats", request.param)
    try:
        return member, member.example(tmp_path / request.param)
    except MissingLibraryError as error:
        pytest.skip(str(error))


def equal(one, other):
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and one == other


def digest(path):
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_an_example_is_detected_clean_and_left_unchanged(example):
    member, path = example
    before = digest(path)
    report = fewbit.check_dataset(path)
    assert report.data_format == member.name and report.complete
    assert not report.errors and not report.warnings, [str(issue) for issue in report.issues]
    assert digest(path) == before


def test_random_access_iteration_and_locations_agree(example):
    _, path = example
    dataset = fewbit.open_dataset(path)
    assert len(dataset) >= 2
    in_order = list(dataset)
    for index in (len(dataset) - 1, 0, len(dataset) // 2):
        assert equal(dataset[index], in_order[index])
        assert str(dataset.location(index))
    strata = dataset.strata()
    assert strata is None or len(strata) == len(dataset)
    if dataset.class_counts() is not None:
        assert set(map(str, strata)) <= set(map(str, dataset.classes))


def test_a_quick_scan_and_a_full_one_see_the_same_samples(example):
    _, path = example
    quick, _ = scan_source(str(path), depth="index")
    full, _ = scan_source(str(path), depth="full")
    assert len(quick) == len(full)
    assert equal(quick[0], full[0]) and quick.location(1) == full.location(1)


def test_a_source_can_be_sent_to_another_process(example):
    _, path = example
    dataset = fewbit.open_dataset(path)
    again = pickle.loads(pickle.dumps(dataset))
    assert len(again) == len(dataset) and equal(again[1], dataset[1])


def test_subsets_are_seeded_and_random_state_is_untouched(example):
    _, path = example
    state = np.random.get_state()[1].tolist()
    first, second = (fewbit.open_dataset(path, samples=2, seed=5) for _ in range(2))
    assert len(first) == 2 and equal(list(first), list(second))
    assert np.random.get_state()[1].tolist() == state


def test_a_repaired_copy_of_clean_data_is_clean_and_equal(example, tmp_path):
    member, path = example
    if member.write is None:
        pytest.skip(f"{member.name} has no repair")
    before = digest(path)
    report = fewbit.fix_dataset(path, tmp_path / "repaired")
    assert digest(path) == before and not report.errors
    again = fewbit.open_dataset(tmp_path / "repaired", data_format=member.name)
    original = fewbit.open_dataset(path)
    assert len(again) == len(original)
    assert all(equal(a, b) for a, b in zip(again, original))


def test_issue_types_are_complete_and_unique():
    seen = {}
    for kinds in issue_types().values():
        for kind in kinds:
            assert kind.code == kind.code.lower() and " " not in kind.code
            assert kind.meaning and not kind.meaning.endswith(".") and kind.hint, kind.code
            assert kind.on_error in ("raise", "drop", "repair", "keep"), kind.code
            # The words may differ by format ("two columns of one name", "key twice in one object"), the weight may not.
            assert seen.setdefault(kind.code, kind).severity == kind.severity, f"{kind.code} has two severities"
            if kind.severity is Severity.ERROR:
                assert kind.on_error != "keep" or kind.actions or kind.fix, kind.code
    assert len(seen) > 200


def test_the_page_of_issues_is_up_to_date():
    from pathlib import Path

    page = Path(__file__).parents[2] / "docs" / "issues.md"
    assert page.read_text() == issues_page(), "run: python -m fewbit.data.issues > docs/issues.md"


def test_locations_inside_an_archive_name_the_archive(tmp_path):
    import shutil

    member = registry.get("data_formats", "image_folder")
    member.example(tmp_path / "images")
    (tmp_path / "images" / "train" / "cat" / "bad.png").write_bytes(b"")
    archive = shutil.make_archive(str(tmp_path / "images"), "zip", tmp_path / "images")
    report = fewbit.check_dataset(archive)
    assert [str(issue.location) for issue in report.errors] == ["images.zip!/train/cat/bad.png"]
    assert str(fewbit.open_dataset(archive, on_error="drop").location(0)).startswith("images.zip!/train/")


def test_opening_a_table_does_not_read_it_all(tmp_path, monkeypatch):
    """The first sample of a large file comes from its first bytes."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a", "size": 3}\n' * 200_000)
    from fewbit.data import files

    amounts = []

    class Counting:
        def __init__(self, stream):
            self._stream = stream

        def read(self, size=-1):
            content = self._stream.read(size)
            amounts.append(len(content))
            return content

        def readline(self, size=-1):
            content = self._stream.readline(size)
            amounts.append(len(content))
            return content

        def readinto(self, buffer):
            count = self._stream.readinto(buffer)
            amounts.append(count)
            return count

        def __getattr__(self, name):
            return getattr(self._stream, name)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self._stream.close()

    opened = files.Folder.open
    monkeypatch.setattr(files.Folder, "open", lambda self, name: Counting(opened(self, name)))
    dataset = fewbit.open_dataset(path)
    assert dataset[0]["text"] == "a"
    assert sum(amounts) < path.stat().st_size / 2, sum(amounts)


def test_a_repaired_copy_leaves_damaged_rows_out_and_is_checked(tmp_path, fewbit_command):
    (tmp_path / "ragged.csv").write_text("text,size\n" + "".join(f"row {n},{n}\n" for n in range(40)) + "short\n")
    code, out, err = fewbit_command("check", tmp_path / "ragged.csv", "--fix", "-o", tmp_path / "repaired")
    assert code == 0 and "OK  no issues in 40 rows" in out, out + err
    assert len(fewbit.open_dataset(tmp_path / "repaired")) == 40


def test_a_copy_of_nothing_is_an_error_and_leaves_nothing_behind(tmp_path, fewbit_command):
    csv, arrays, images = tmp_path / "a.csv", tmp_path / "arrays", tmp_path / "images" / "cat"
    csv.write_text("text,size\nshort\nshorter\n")
    arrays.mkdir()
    (arrays / "0.npz").write_bytes(b"PK\x03\x04 and no more")
    images.mkdir(parents=True)
    (images / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    before = sorted(tmp_path.rglob("*"))
    for path, error in ((csv, "no-rows"), (arrays, "fix-empty"), (images.parent, "fix-empty")):
        code, out, err = fewbit_command("check", path, "--fix", "-o", tmp_path / "repaired")
        assert code == 3 and f"[{error}]" in err, out + err
        assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", ["csv", "npz", "image_folder"])
def test_the_report_of_a_repair_counts_the_samples_of_the_original(tmp_path, kind):
    path = tmp_path / "data"
    if kind == "csv":
        path = tmp_path / "a.csv"
        path.write_text("text,size\n" + "".join(f"row {number},{number}\n" for number in range(40)) + "short\n")
    else:
        registry.get("data_formats", kind).example(path)
        damaged = next(file for file in sorted(path.rglob("*")) if file.suffix in (".npz", ".png"))
        damaged.write_bytes(damaged.read_bytes()[:60])
    original = fewbit.check_dataset(path).facts["samples"]
    report = fewbit.fix_dataset(path, tmp_path / "repaired")
    lost = 0 if kind == "csv" else 1  # `check` counts rows that can be read
    assert report.facts["samples"] == original == report.facts["copy"].facts["samples"] + lost


def test_an_unknown_issue_code_is_an_error(tmp_path):
    member = registry.get("data_formats", "image_folder")
    path = member.example(tmp_path / "images")
    with pytest.raises(fewbit.UsageError, match="image-truncated"):
        fewbit.open_dataset(path, on_error={"image-trunc": "drop"})


def test_a_sampled_check_says_so(tmp_path):
    member = registry.get("data_formats", "image_folder")
    report = fewbit.check_dataset(member.example(tmp_path / "images"), samples=4)
    assert "in 4 of 12 images" in str(report)


def test_a_quick_check_says_so_and_an_empty_path_is_an_error(tmp_path):
    member = registry.get("data_formats", "image_folder")
    report = fewbit.check_dataset(member.example(tmp_path / "images"), quick=True)
    assert "names, sizes and headers only" in str(report)
    with pytest.raises(fewbit.DataError, match="no file or folder"):
        fewbit.check_dataset("")
