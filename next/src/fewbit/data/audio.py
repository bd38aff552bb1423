# SPDX-License-Identifier: Apache-2.0
"""One audio file as float32 [T], channels averaged, with its sampling rate; nothing is resampled.

PCM WAV is read by the standard library, everything else by soundfile.
"""

from __future__ import annotations

import io
import wave
from typing import Any, BinaryIO

import numpy as np

from fewbit.data.types import NOWHERE, Issue, IssueType, Location, SampleError, Severity
from fewbit.errors import MissingLibraryError, require

SUFFIXES = frozenset((".wav", ".flac", ".ogg", ".opus", ".mp3", ".aif", ".aiff"))
"""Lower-case suffixes of audio files that are read."""
SKIPPED_SUFFIXES = frozenset((".m4a", ".aac", ".wma", ".amr", ".mid", ".midi", ".weba", ".caf"))
"""Lower-case suffixes of audio files that are not read: they are reported as skipped."""
_MAGIC = (
    b"RIFF",
    b"RIFX",
    b"RF64",
    b"fLaC",
    b"OggS",
    b"FORM",
    b"ID3",
    *(bytes((0xFF, byte)) for byte in range(0xE0, 0xFF)),
)

MOST_BYTES = 1 << 30
MOST_VALUES = 1 << 28
"""Frames times channels of one file."""
_BLOCK = 1 << 20
_UNKNOWN_LENGTH = 0xFFFF_FF00
"""Programs that write to a pipe put the largest number into the header."""


def _damage(code: str, meaning: str, hint: str = "restore or remove it") -> IssueType:
    return IssueType(code, Severity.ERROR, meaning, hint, "raise", ("drop",), "leaves the file out")


AUDIO_EMPTY = _damage("audio-empty", "empty audio file")
AUDIO_TRUNCATED = _damage("audio-truncated", "truncated audio file")
AUDIO_UNREADABLE = _damage("audio-unreadable", "file that cannot be decoded as audio")
AUDIO_TOO_LONG = _damage("audio-too-long", "audio file that is too long to decode", "cut it into shorter files")
AUDIO_ISSUES = (AUDIO_EMPTY, AUDIO_TRUNCATED, AUDIO_UNREADABLE, AUDIO_TOO_LONG)


def decode_audio(content: bytes | BinaryIO, location: Location = NOWHERE) -> tuple[np.ndarray, int]:
    """Decode one audio file: float32 [T] in -1..1, the mean of all channels, and the sampling rate in Hz.

    Raises:
        SampleError: empty, truncated, too long, or no audio.
    """
    try:
        if not isinstance(content, bytes):
            content.seek(0)
            content = content.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise _error(AUDIO_TOO_LONG, f"more than {MOST_BYTES:,} bytes", location)
        if not content:
            raise _error(AUDIO_EMPTY, "0 bytes", location)
        frames, rate, claimed = _decode(content, location)
    except SampleError:
        raise
    except Exception as error:  # decoders raise anything on damaged bytes
        raise _error(AUDIO_UNREADABLE, str(error) or type(error).__name__, location) from error
    if len(frames) < claimed:
        raise _error(AUDIO_TRUNCATED, f"{len(frames):,} of {claimed:,} samples", location)
    if not len(frames):
        raise _error(AUDIO_EMPTY, "no samples", location)
    if rate <= 0:
        raise _error(AUDIO_UNREADABLE, f"a sampling rate of {rate}", location)
    return (frames[:, 0] if frames.shape[1] == 1 else frames.mean(axis=1, dtype=np.float32)), rate


def judge_audio(head: bytes, location: Location) -> None:
    """Raise a `SampleError` if a file that begins with these bytes is no audio."""
    if not head:
        raise _error(AUDIO_EMPTY, "0 bytes", location)
    if not head.startswith(_MAGIC) and head.strip(b"\0"):  # silence may stand before the first frame of an MP3
        raise _error(AUDIO_UNREADABLE, f"no audio; it begins with {head[:16].hex(' ')}", location)


def _error(kind: IssueType, message: str, location: Location) -> SampleError:
    return SampleError(Issue(kind, message, location))


def _decode(data: bytes, location: Location) -> tuple[np.ndarray, int, int]:
    """Values, sampling rate, and how many samples the header claims; 0 if it does not know."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        try:
            return _decode_pcm(data, location)
        except EOFError:
            raise _error(AUDIO_TRUNCATED, "the WAV header ends early", location) from None
        except wave.Error as error:
            if "unknown format" not in str(error):
                raise
    return _decode_with_soundfile(data, location)


def _decode_pcm(data: bytes, location: Location) -> tuple[np.ndarray, int, int]:
    with wave.open(io.BytesIO(data)) as stream:
        channels, width, rate, claimed = stream.getparams()[:4]
        length_known = claimed * channels * width < _UNKNOWN_LENGTH
        _check_length(claimed if length_known else 0, channels, location)
        pcm = stream.readframes(min(claimed, MOST_VALUES))
    pcm = pcm[: len(pcm) // (channels * width) * channels * width]
    if width == 1:  # the only unsigned one
        values = (np.frombuffer(pcm, np.uint8).astype(np.float32) - 128) / 128
    else:
        padded = np.zeros((len(pcm) // width, 4), np.uint8)
        padded[:, 4 - width :] = np.frombuffer(pcm, np.uint8).reshape(-1, width)  # little-endian
        values = padded.view("<i4")[:, 0].astype(np.float32) / (1 << 31)
    return values.reshape(-1, channels), rate, claimed if length_known else 0


def _decode_with_soundfile(data: bytes, location: Location) -> tuple[np.ndarray, int, int]:
    try:
        soundfile: Any = require("soundfile", extra="audio", purpose="audio files other than PCM WAV")
    except MissingLibraryError as error:
        raise _error(AUDIO_UNREADABLE, f"{error.what}: {error.hint}", location) from error
    blocks: list[np.ndarray] = []
    with soundfile.SoundFile(io.BytesIO(data)) as stream:
        rate, claimed, channels = int(stream.samplerate), int(stream.frames), int(stream.channels)
        while len(block := stream.read(_BLOCK // channels, dtype="float32", always_2d=True)):
            blocks.append(block)
            _check_length(sum(map(len, blocks)), channels, location)
        exact = stream.format in ("WAV", "FLAC", "AIFF") and claimed < MOST_VALUES  # others estimate their length
    frames = np.concatenate(blocks) if blocks else np.zeros((0, channels), np.float32)
    return np.nan_to_num(frames, nan=0.0, posinf=0.0, neginf=0.0), rate, claimed if exact else 0


def _check_length(frames: int, channels: int, location: Location) -> None:
    if frames * channels > MOST_VALUES:
        message = f"{frames:,} samples in {channels} channels; at most {MOST_VALUES:,} values are decoded"
        raise _error(AUDIO_TOO_LONG, message, location)
