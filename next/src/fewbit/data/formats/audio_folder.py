# SPDX-License-Identifier: Apache-2.0
"""Folders of audio files: one folder per class, with or without splits, or files without classes."""

from __future__ import annotations

import os
import wave
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from fewbit.data.audio import AUDIO_ISSUES, SKIPPED_SUFFIXES, SUFFIXES, decode_audio, judge_audio
from fewbit.data.files import FILE_UNREADABLE
from fewbit.data.images.class_folders import CLASS_FOLDER_ISSUES, CLASS_FOLDER_OPTIONS, Media, read_class_folders
from fewbit.data.images.file_source import check_first_bytes
from fewbit.data.images.inspect import DUPLICATE_ISSUES, leaks_to_drop, report_duplicates, try_each
from fewbit.data.images.labeled_files import ClassFolderSource
from fewbit.data.images.signatures import suffix_of
from fewbit.data.types import DataReport, Depth, Detection, Files, Format, IssueType, Location, Sample, Severity
from fewbit.errors import plural, require

NO_AUDIO = IssueType(
    "no-audio", Severity.ERROR, "no audio files", "put the files into folders: cat/FILE, dog/FILE, or train/cat/FILE",
    "raise",
)  # fmt: skip
AUDIO_OUTSIDE = IssueType(
    "audio-outside-class", Severity.WARNING, "audio file in no class folder, which is not read",
    "move it into its class", "drop",
)  # fmt: skip
AUDIO_SKIPPED = IssueType(
    "audio-skipped", Severity.WARNING, "audio file that is not read because of its suffix",
    f"convert it, or correct its suffix; these are read: {' '.join(sorted(SUFFIXES))}", "drop",
)  # fmt: skip
SAMPLING_RATE = IssueType(
    "sampling-rate", Severity.WARNING, "audio file with another sampling rate than most",
    "resample it: fewbit does not",
)  # fmt: skip
AUDIO = Media("audio file", "audio-classification", SUFFIXES, SKIPPED_SUFFIXES, NO_AUDIO, AUDIO_SKIPPED, AUDIO_OUTSIDE)
_TABLES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")


def detect(files: Files) -> Detection | None:
    """Audio files in folders or alone, unless a table at the top may hold their labels."""
    names = files.names()
    clips = [name for name in names if suffix_of(name) in SUFFIXES]
    if not clips or 2 * len(clips) < len(names):
        return None
    if any("/" not in name and name.lower().endswith(_TABLES) for name in names):
        return Detection(0.4, f"{plural(len(clips), 'audio file')} next to a table")
    folders = {name.partition("/")[0] for name in clips if "/" in name}
    reason = f"audio files in {plural(len(folders), 'folder')}" if folders else plural(len(clips), "audio file")
    return Detection(0.85 if len(folders) > 1 or len(names) == 1 else 0.6, reason)


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> ClassFolderSource:
    """Find splits and classes by names; with `full` depth also decode every file."""
    layout = read_class_folders(files, report, AUDIO, options)
    names = [entry.name for entry in layout.selected]
    if any(suffix_of(name) != ".wav" for name in names):
        require("soundfile", extra="audio", purpose="audio files other than PCM WAV")
    source = ClassFolderSource(files, layout, AUDIO.task, _decode)
    if depth == "index":
        source.leave_out(check_first_bytes(files, names, report, judge_audio))
        return source
    clips, damaged, dropped = try_each(partial(_measure, files), names, report)
    _report_rates(clips, report)
    entries = [(entry.split or "", entry.label or "", entry.name) for entry in layout.selected]
    sizes = {name: clip.size for name, clip in clips.items()}
    leaks = report_duplicates(files, entries, sizes, report)
    source.repair(damaged, leaks)
    source.leave_out({*dropped, *leaks_to_drop(leaks, report)})
    return source


def _decode(stream: BinaryIO, location: Location) -> Sample:
    values, rate = decode_audio(stream, location)
    return {"audio": values, "sampling_rate": rate}


class _Clip(NamedTuple):
    size: int
    seconds: float
    rate: int


def _measure(files: Files, name: str) -> _Clip:
    with files.open(name) as stream:
        values, rate = decode_audio(stream, Location(name))
        return _Clip(stream.seek(0, os.SEEK_END), len(values) / rate, rate)


def _report_rates(clips: Mapping[str, _Clip], report: DataReport) -> None:
    if not clips:
        return
    rates = Counter(sorted(clip.rate for clip in clips.values()))
    most_common = max(rates, key=rates.__getitem__)
    for name, clip in clips.items():
        if clip.rate != most_common:
            report.add(SAMPLING_RATE, f"{clip.rate:,} Hz; most have {most_common:,} Hz", Location(name))
    seconds = [clip.seconds for clip in clips.values()]
    hertz = ", ".join(f"{rate:,} Hz" for rate in rates)
    report.facts["layout"] = f"{hertz}; {min(seconds):.2f} to {max(seconds):.2f} s"


def example(folder: Path) -> Path:
    """Two classes of short tones, as 16-bit WAV."""
    for pitch, label in ((220, "low"), (880, "high")):
        (folder / label).mkdir(parents=True, exist_ok=True)
        for index in range(4):
            tone = np.sin(2 * np.pi * (pitch + index) * np.arange(800) / 8_000)
            with wave.open(str(folder / label / f"{index}.wav"), "wb") as stream:
                stream.setparams((1, 2, 8_000, 0, "NONE", ""))
                stream.writeframes((tone * 20_000).astype("<i2").tobytes())
    return folder


FORMAT = Format(
    "audio_folder", "audio folder", "dog/1.wav, train/dog/1.flac, or audio files without classes",
    (
        NO_AUDIO, AUDIO_OUTSIDE, AUDIO_SKIPPED, *CLASS_FOLDER_ISSUES, SAMPLING_RATE, *AUDIO_ISSUES, *DUPLICATE_ISSUES,
        FILE_UNREADABLE,
    ),
    detect, scan, example, options=CLASS_FOLDER_OPTIONS, write=ClassFolderSource.write, unit="audio file",
    suffixes=tuple(SUFFIXES),
)  # fmt: skip
