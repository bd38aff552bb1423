# SPDX-License-Identifier: Apache-2.0
"""Every format: damaged copies end in samples or typed issues; archives hold the same samples as their folder."""

import contextlib
import pickle
import random
import resource
import shutil
import signal
import tarfile
import zipfile
from collections.abc import Mapping

import numpy as np
import pytest

from data.mutation import folder_digest, mutate_bytes, mutate_folder
from fewbit import registry
from fewbit.data.opening import scan_source
from fewbit.errors import FewbitError, MissingLibraryError

FORMATS = registry.names("data_formats")
FEW, MANY = 30, 10_000
SECONDS, MEMORY = 20, 1 << 30


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEWBIT_CACHE_DIR", str(tmp_path / "cache"))


def example(name, folder):
    """The path of a format's own example; skipped if its library is missing."""
    try:
        return registry.get("data_formats", name).example(folder)
    except MissingLibraryError as error:
        pytest.skip(str(error))


@contextlib.contextmanager
def time_limit(seconds, case):
    """A hang becomes a failure that names the case."""

    def stop(*_):
        raise AssertionError(f"{case}: more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def read_everything(path, data_format, chance):
    """Check and read a dataset as verbs do; only typed errors are allowed, and messages must be harmless."""
    on_error = chance.choice((None, "drop", "repair", "keep"))
    depth = chance.choice(("index", "full", "full"))
    try:
        source, report = scan_source(str(path), data_format=data_format, on_error=on_error, depth=depth)
        for index in range(len(source)):
            harmless(str(source.location(index)))
            try:
                assert isinstance(source[index], Mapping)
            except FewbitError as error:
                harmless(str(error))
        source.strata()
    except FewbitError as error:
        harmless(str(error))
        return "error"
    for issue in report.issues:
        harmless(str(issue))
        assert issue.type.meaning and issue.type.hint, issue.code
    return "issues" if report.issues else "samples"


def harmless(text):
    text.encode("utf-8")
    bad = [character for character in text if (ord(character) < 32 and character != "\n") or character in "\u202e\x7f"]
    assert not bad, repr(text)


def fuzz(name, tmp_path, seeds):
    original = example(name, tmp_path / "original")
    ends = {"error": 0, "issues": 0, "samples": 0}
    for seed in seeds:
        chance = random.Random(f"{name} {seed}")
        work = tmp_path / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(tmp_path / "original", work, symlinks=True)
        path = work / original.relative_to(tmp_path / "original")
        injury = mutate_folder(path, chance)
        if not path.exists():
            continue
        before = folder_digest(work)
        case = f"{name}, seed {seed}: {injury}"
        try:
            with time_limit(SECONDS, case):
                ends[read_everything(path, chance.choice((name, name, None)), chance)] += 1
        except Exception as error:
            raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
        assert folder_digest(work) == before, f"{case}: the source was changed"
    return ends


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_copies_end_in_samples_or_typed_issues(name, tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ends = fuzz(name, tmp_path, range(FEW))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < MEMORY, f"{grown:,} bytes"
    assert ends["error"] + ends["issues"] > FEW / 10, ends  # otherwise nothing was looked at


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_ten_thousand_damaged_copies(name, tmp_path):
    fuzz(name, tmp_path, range(FEW, FEW + MANY // len(FORMATS)))


def equal(one, other):
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other) or (one != one and other != other)


def packed(path, target):
    """A zip or tar of a dataset, by the suffix of the target."""
    members = [file for file in sorted(path.rglob("*")) if file.is_file()] if path.is_dir() else [path]
    base = path if path.is_dir() else path.parent
    if target.suffix == ".zip":
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in members:
                archive.write(file, f"wrapped/{file.relative_to(base)}")
    else:
        with tarfile.open(target, "w:gz" if target.name.endswith("gz") else "w") as archive:
            for file in members:
                archive.add(file, file.relative_to(base))
    return target


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("suffix", ["zip", "tar", "tar.gz"])
def test_an_archive_of_a_dataset_is_the_dataset(name, suffix, tmp_path):
    path = example(name, tmp_path / "original")
    plain, before = scan_source(str(path), data_format=name)
    inside, report = scan_source(str(packed(path, tmp_path / f"a.{suffix}")), data_format=name)
    assert len(inside) == len(plain) > 0
    assert set(report.counts) == set(before.counts)
    for index in range(len(plain)):
        assert equal(plain[index], inside[index]), f"sample {index}"
    assert inside.strata() == plain.strata()
    assert {key: value for key, value in inside.facts.items() if key in ("classes", "columns", "splits", "task")} == {
        key: value for key, value in plain.facts.items() if key in ("classes", "columns", "splits", "task")
    }
    again = pickle.loads(pickle.dumps(inside))
    assert equal(again[0], plain[0])


@pytest.mark.parametrize("name", FORMATS)
def test_an_example_is_detected_and_clean(name, tmp_path):
    path = example(name, tmp_path / "original")
    _, report = scan_source(str(path), depth="full")
    assert report.data_format == name
    assert not report.errors and report.complete


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_archive_of_a_dataset_is_bounded(name, tmp_path):
    path = example(name, tmp_path / "original")
    for suffix in ("zip", "tar"):
        raw = packed(path, tmp_path / f"a.{suffix}").read_bytes()
        for seed in range(4):
            chance = random.Random(f"{name} {suffix} {seed}")
            (tmp_path / f"b.{suffix}").write_bytes(mutate_bytes(raw, chance))
            with time_limit(SECONDS, f"{name}, {suffix}, seed {seed}"):
                read_everything(tmp_path / f"b.{suffix}", name, chance)
