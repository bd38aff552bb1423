# SPDX-License-Identifier: Apache-2.0
"""Formats that fewbit knows but does not read, by name or first bytes, each with the line that converts it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from fewbit.data.types import Files, SampleError
from fewbit.errors import plural

_MAX_NAMES = 2000


@dataclass(frozen=True)
class _Recognized:
    """A format that is not read.

    Args:
        title: what people call it.
        names: pattern of file names, in lower case.
        magic: first bytes, as a pattern.
        hint: what to do.
    """

    title: str
    names: str
    magic: bytes | None
    hint: str


_TO_NPZ = "one file per sample: numpy.savez('data/0.npz', **sample)"
_TABLE = (
    _Recognized(
        "TFRecord", r".*\.tfrecords?(-\d+-of-\d+)?(\.gz)?|.*\.tfrec", None,
        "give fewbit the tf.data dataset itself: fewbit.Dataset(tf.data.TFRecordDataset(files).map(parse)); or write "
        + _TO_NPZ,
    ),
    _Recognized(
        "HDF5", r".*\.(h5|hdf5|he5|hdf)", rb"\x89HDF\r\n\x1a\n",
        "with h5py.File('data.h5') as file: numpy.savez('data.npz', **{key: file[key][:] for key in file}); then "
        "{data_option=stacked=true}",
    ),
    _Recognized(
        "MATLAB", r".*\.mat", rb"MATLAB 5\.0 MAT-file",
        "content = scipy.io.loadmat('data.mat'); numpy.savez('data.npz', **{key: content[key] for key in names})",
    ),
    _Recognized(
        "IDX (MNIST)", r".*[-.]idx[1-4][-.]ubyte(\.gz)?", rb"\0\0[\x08\x09\x0b-\x0e][\x01-\x04]",
        "read it with torchvision.datasets.MNIST and give fewbit that dataset; or write " + _TO_NPZ,
    ),
    _Recognized(
        "video", r".*\.(mp4|avi|mov|mkv|webm|mpg|mpeg|wmv|m4v)",
        rb"....ftyp(isom|mp4|avc1|qt)|\x1aE\xdf\xa3|RIFF....AVI ",
        "extract frames: ffmpeg -i video.mp4 -vf fps=1 frames/%06d.jpg",
    ),
    _Recognized(
        "PyTorch file", r".*\.(pt|pth|ckpt)", None,
        "it holds a pickle, which can run any code and is never opened; if you trust it, load it yourself and write "
        + _TO_NPZ,
    ),
    _Recognized(
        "pickle", r".*\.(pkl|pickle|p|joblib|dill)|(data|test)_batch(_\d)?", rb"\x80[\x02-\x05].",
        "a pickle can run any code and is never opened; if you trust it, load it yourself and write " + _TO_NPZ,
    ),
    _Recognized("7z archive", r".*\.7z", rb"7z\xbc\xaf\x27\x1c", "7z x data.7z -odata; or pack it as zip or tar"),
    _Recognized("RAR archive", r".*\.rar", rb"Rar!\x1a\x07", "unrar x data.rar data/; or pack it as zip or tar"),
    _Recognized("compressed tar", r".*\.(tar\.(bz2|xz|lzma)|tbz2?|txz)", None, "tar xf data.tar.xz -C data"),
    _Recognized("LMDB", r"(.*/)?(data|lock)\.mdb", None, "read it with the lmdb package and write " + _TO_NPZ),
    _Recognized("RecordIO", r".*\.(rec|recordio)", None, "read it with the program that wrote it and write " + _TO_NPZ),
    _Recognized("Zarr", r"(.*/)?zarr\.json", None, "numpy.save('data.npy', zarr.open('data.zarr')[:])"),
    _Recognized("NetCDF", r".*\.(nc|nc4|cdf)", rb"CDF[\x01\x02\x05]", "read it with xarray and write " + _TO_NPZ),
    _Recognized("DICOM", r".*\.(dcm|dicom)", None, "pydicom.dcmread(path).pixel_array; save it as PNG or .npy"),
    _Recognized("NIfTI", r".*\.nii(\.gz)?", None, "numpy.save('data.npy', nibabel.load('data.nii').get_fdata())"),
    _Recognized("R data", r".*\.(rds|rdata|rda)", None, "write.csv(data, 'data.csv', row.names = FALSE)"),
    _Recognized("document", r".*\.(pdf|docx?|odt|rtf|epub)", rb"%PDF-", "convert it to text: pandoc -t plain"),
    _Recognized("safetensors file", r".*\.safetensors", None, "these are weights; {data} takes the samples"),
    _Recognized(
        "ONNX or GGUF model", r".*\.(onnx|gguf|tflite|pt2)", rb"GGUF",
        "this is a model; {data} takes the samples",
    ),
)  # fmt: skip


def recognized(files: Files) -> dict[str, Any] | None:
    """What to tell a user about a format that is known but not read.

    Args:
        files: what no format of fewbit wants.

    Returns:
        Arguments of a `DataError`, or `None` if it is nothing known.
    """
    names = list(files.names()[:_MAX_NAMES])
    counts: Counter[int] = Counter()
    first: dict[int, str] = {}
    for name in names:
        base = name.rpartition("/")[2].lower()
        for number, kind in enumerate(_TABLE):
            if re.fullmatch(kind.names, name.lower()) or re.fullmatch(kind.names, base):
                counts[number] += 1
                first.setdefault(number, name)
                break
    if not counts:
        for name in names[:4]:
            matched = _match_magic(files, name)
            if matched is not None:
                counts[matched] += 1
                first.setdefault(matched, name)
    if not counts or (max(counts.values()) * 2 < len(names) and len(names) > 8):
        return None
    number = max(counts, key=lambda kind: (counts[kind], -kind))
    kind = _TABLE[number]
    return {
        "what": f"{files.root} holds {plural(counts[number], 'file')} that fewbit does not read: {kind.title}",
        "code": "format-unsupported",
        "where": first[number],
        "expected": "a format of `fewbit list data-formats`",
        "hint": kind.hint,
    }


def _match_magic(files: Files, name: str) -> int | None:
    try:
        head = files.read(name, 64)
    except SampleError:
        return None
    for number, kind in enumerate(_TABLE):
        if kind.magic is not None and re.match(kind.magic, head, re.DOTALL):
            return number
    return None
