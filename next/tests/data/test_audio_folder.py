# SPDX-License-Identifier: Apache-2.0
"""Audio folders: PCM of every width, other formats by soundfile, damage, sampling rates."""

import io
import random
import struct
import wave

import numpy as np
import pytest
import soundfile

from data.mutation import mutate_bytes
from fewbit.data.audio import decode_audio
from fewbit.data.files import Folder
from fewbit.data.formats.audio_folder import FORMAT, detect, scan
from fewbit.data.opening import open_source, scan_source
from fewbit.data.types import DataReport, SampleError
from fewbit.errors import MissingLibraryError


def tone(length=400, pitch=440, rate=8_000):
    return (0.5 * np.sin(2 * np.pi * pitch * np.arange(length) / rate)).astype(np.float32)


def pcm(values=None, *, width=2, channels=1, rate=8_000):
    values = tone() if values is None else values
    scaled = np.round(values.astype(np.float64) * (2 ** (8 * width - 1) - 1))
    if width == 1:
        data = (scaled + 128).astype(np.uint8).tobytes()
    else:
        data = b"".join(int(value).to_bytes(width, "little", signed=True) for value in scaled)
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(data)
    return stream.getvalue()


def encoded(format, values=None, rate=8_000, subtype=None):
    stream = io.BytesIO()
    soundfile.write(stream, tone() if values is None else values, rate, format=format, subtype=subtype)
    return stream.getvalue()


def dataset(root, contents):
    for name, content in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def check(root, on_error=None, depth="full", **options):
    report = DataReport(on_error=on_error)
    source = scan(Folder(root, report=report), report, depth=depth, options=options)
    report.facts.setdefault("samples", len(source))
    report.complete = True
    return source, report


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_pcm_of_every_width(width):
    values, rate = decode_audio(pcm(width=width))
    assert rate == 8_000 and values.dtype == np.float32
    np.testing.assert_allclose(values, tone(), atol=1.5 / 2 ** (8 * width - 1) + 1e-7)


@pytest.mark.parametrize(
    ("format", "subtype"), [("FLAC", None), ("OGG", None), ("MP3", None), ("WAV", "FLOAT"), ("WAV", "ULAW")]
)
def test_other_formats_by_soundfile(format, subtype):
    rate = 16_000
    values, found = decode_audio(encoded(format, tone(8_000), rate, subtype))
    assert found == rate and abs(len(values) - 8_000) < 3_000 and 0.2 < np.abs(values).max() < 0.8


def test_channels_are_averaged():
    stereo = np.stack([tone(), np.zeros(400, np.float32)], axis=1).reshape(-1)
    values, _ = decode_audio(pcm(stereo, channels=2))
    np.testing.assert_allclose(values, tone() / 2, atol=1e-4)


def test_a_header_without_a_length_is_read_to_the_end():
    content = bytearray(pcm())
    position = content.index(b"data") + 4
    content[position : position + 4] = b"\xff\xff\xff\xff"
    assert len(decode_audio(bytes(content))[0]) == 400


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "audio-empty"),
        (pcm(np.zeros(0, np.float32)), "audio-empty"),
        (pcm()[:-100], "audio-truncated"),
        (pcm()[:30], "audio-truncated"),
        (b"<html>not found</html>", "audio-unreadable"),
        (encoded("FLAC", tone(8_000))[:200], None),
        (pcm().replace(struct.pack("<I", 8_000), struct.pack("<I", 0)), "audio-unreadable"),
    ],
)
def test_damage_is_a_typed_issue(content, code):
    with pytest.raises(SampleError) as caught:
        decode_audio(content)
    assert caught.value.code.startswith("audio-") and code in (None, caught.value.code)


@pytest.mark.parametrize("format", ["pcm", "FLAC", "WAV", "OGG"])
def test_mutated_files_end_in_samples_or_issues(format):
    original = pcm() if format == "pcm" else encoded(format, subtype="FLOAT" if format == "WAV" else None)
    for seed in range(40):
        try:
            values, rate = decode_audio(mutate_bytes(original, random.Random(seed)))
            assert values.ndim == 1 and rate > 0 and np.isfinite(values).all()
        except SampleError as error:
            assert error.code.startswith("audio-")


def test_classes_splits_and_samples(tmp_path):
    names = ("train/dog/1.wav", "train/cat/1.wav", "val/dog/1.wav", "val/cat/1.wav")
    root = dataset(tmp_path, {name: pcm(tone(pitch=100 + 9 * n)) for n, name in enumerate(names)})
    source = open_source(str(root), data_format="audio_folder")[0]
    assert source.facts == {"classes": ["cat", "dog"], "task": "audio-classification", "splits": {"train": 2, "val": 2}}
    assert source.strata() == ["cat", "dog", "cat", "dog"]
    sample = source[1]
    assert sample["label"] == 1 and sample["sampling_rate"] == 8_000 and sample["audio"].shape == (400,)
    assert detect(Folder(root)).confidence >= 0.8


def test_rates_damage_and_duplicates_are_reported(tmp_path):
    contents = {f"a/{n}.wav": pcm(tone(pitch=200 + n)) for n in range(3)}
    contents |= {
        "b/1.wav": pcm(tone(pitch=300), rate=16_000),
        "b/2.wav": b"",
        "b/3.wav": pcm()[:-9],
        "b/4.wav": pcm(tone(pitch=200)),
    }
    contents |= {"b/5.m4a": b"x", "b/notes.txt": b"x"}
    root = dataset(tmp_path / "data", contents)
    source, report = check(root)
    assert {(issue.code, issue.location.file) for issue in report.issues} == {
        ("sampling-rate", "b/1.wav"), ("audio-empty", "b/2.wav"), ("audio-truncated", "b/3.wav"),
        ("duplicate-across-classes", "b/4.wav"), ("audio-skipped", "b/5.m4a"), ("file-ignored", "b/notes.txt"),
    }  # fmt: skip
    assert report.facts["layout"] == "8,000 Hz, 16,000 Hz; 0.03 to 0.05 s"
    assert len(source) == 7 and len(check(root, on_error="drop")[0]) == 5
    (tmp_path / "out").mkdir()
    changes = FORMAT.write(source, tmp_path / "out")
    assert len(changes) == 2 and not check(tmp_path / "out")[1].errors


def test_a_quick_check_finds_empty_and_foreign_files_and_the_report_has_spaces(tmp_path):
    contents = {"a/1.wav": b"", "a/2.flac": b"<html>", "a/3.wav": pcm(), "b/1.mp3": encoded("MP3", tone(8_000))}
    contents |= {"b/2.flac": encoded("FLAC"), "b/3.ogg": encoded("OGG", tone(8_000)), "b/4.aiff": encoded("AIFF")}
    root = dataset(tmp_path, contents)
    _, report = check(root, depth="index")
    assert [(issue.code, issue.location.file) for issue in report.errors] == [
        ("audio-empty", "a/1.wav"), ("audio-unreadable", "a/2.flac")
    ]  # fmt: skip
    assert "audio files 7;" in str(scan_source(str(root), depth="full")[1])


def test_without_soundfile_wav_still_works(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    assert len(check(dataset(tmp_path / "a", {"a/1.wav": pcm(), "b/1.wav": pcm(tone(pitch=1))}))[0]) == 2
    with pytest.raises(MissingLibraryError, match="soundfile"):
        check(dataset(tmp_path / "b", {"a/1.flac": encoded_flac, "b/1.wav": pcm()}), depth="index")
    with pytest.raises(SampleError, match="soundfile"):
        decode_audio(encoded_float)


encoded_flac, encoded_float = encoded("FLAC"), encoded("WAV", subtype="FLOAT")


def test_other_layouts_are_not_taken_for_audio_folders(tmp_path):
    assert detect(Folder(dataset(tmp_path / "a", {"a/1.txt": b"x"}))) is None
    table = dataset(tmp_path / "b", {"metadata.csv": b"file_name,label\n", "a/1.wav": pcm(), "b/1.wav": pcm()})
    assert detect(Folder(table)).confidence <= 0.4
