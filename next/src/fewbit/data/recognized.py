# SPDX-License-Identifier: Apache-2.0
"""Formats that fewbit knows but does not read, by name or first bytes, each with the line that converts it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from fewbit.data.types import Files, SampleError
from fewbit.errors import plural

_MAX_NAMES = 2000


class _Recognized(NamedTuple):
    """A format that is not read: its title, what to do, the pattern of its names, and of its first bytes."""

    title: str
    hint: str
    names: str
    magic: bytes | None = None


_TO_NPZ = "one file per sample: numpy.savez('data/0.npz', **sample)"
_PICKLE = "can run any code and is never opened; if you trust it, load it yourself and write " + _TO_NPZ
_TABLE = (
    _Recognized(
        "TFRecord",
        "give fewbit the tf.data dataset itself: fewbit.Dataset(tf.data.TFRecordDataset(files).map(parse)); or write "
        + _TO_NPZ,
        r".*\.tfrecords?(-\d+-of-\d+)?(\.gz)?|.*\.tfrec",
    ),
    _Recognized(
        "HDF5",
        "with h5py.File('data.h5') as file: numpy.savez('data.npz', **{key: file[key][:] for key in file}); then "
        "{data_option=stacked=true}",
        r".*\.(h5|hdf5|he5|hdf)", rb"\x89HDF\r\n\x1a\n",
    ),
    _Recognized(
        "MATLAB",
        "content = scipy.io.loadmat('data.mat'); numpy.savez('data.npz', **{key: content[key] for key in names})",
        r".*\.mat", rb"MATLAB 5\.0 MAT-file",
    ),
    _Recognized(
        "IDX (MNIST)",
        "read it with torchvision.datasets.MNIST and give fewbit that dataset; or write " + _TO_NPZ,
        r".*[-.]idx[1-4][-.]ubyte(\.gz)?", rb"\0\0[\x08\x09\x0b-\x0e][\x01-\x04]",
    ),
    _Recognized(
        "video", "extract frames: ffmpeg -i video.mp4 -vf fps=1 frames/%06d.jpg",
        r".*\.(mp4|avi|mov|mkv|webm|mpg|mpeg|wmv|m4v)", rb"....ftyp(isom|mp4|avc1|qt)|\x1aE\xdf\xa3|RIFF....AVI ",
    ),
    _Recognized("PyTorch file", f"it holds a pickle, which {_PICKLE}", r".*\.(pt|pth|ckpt)"),
    _Recognized(
        "pickle", f"a pickle {_PICKLE}", r".*\.(pkl|pickle|p|joblib|dill)|(data|test)_batch(_\d)?", rb"\x80[\x02-\x05]."
    ),
    _Recognized(
        "archives inside a folder or archive", "open one archive by its path, or unpack them: unzip data.zip -d data",
        r".*\.(zip|tar|tgz|tzst|tar\.gz|tar\.zst)",
    ),
    _Recognized("7z archive", "7z x data.7z -odata; or pack it as zip or tar", r".*\.7z", rb"7z\xbc\xaf\x27\x1c"),
    _Recognized("RAR archive", "unrar x data.rar data/; or pack it as zip or tar", r".*\.rar", rb"Rar!\x1a\x07"),
    _Recognized("compressed tar", "tar xf data.tar.xz -C data", r".*\.(tar\.(bz2|xz|lzma)|tbz2?|txz)"),
    _Recognized("LMDB", "read it with the lmdb package and write " + _TO_NPZ, r"(.*/)?(data|lock)\.mdb"),
    _Recognized("RecordIO", "read it with the program that wrote it and write " + _TO_NPZ, r".*\.(rec|recordio)"),
    _Recognized("Zarr", "numpy.save('data.npy', zarr.open('data.zarr')[:])", r"(.*/)?zarr\.json"),
    _Recognized("NetCDF", "read it with xarray and write " + _TO_NPZ, r".*\.(nc|nc4|cdf)", rb"CDF[\x01\x02\x05]"),
    _Recognized("DICOM", "pydicom.dcmread(path).pixel_array; save it as PNG or .npy", r".*\.(dcm|dicom)"),
    _Recognized("NIfTI", "numpy.save('data.npy', nibabel.load('data.nii').get_fdata())", r".*\.nii(\.gz)?"),
    _Recognized("R data", "write.csv(data, 'data.csv', row.names = FALSE)", r".*\.(rds|rdata|rda)"),
    _Recognized("document", "convert it to text: pandoc -t plain", r".*\.(pdf|docx?|odt|rtf|epub)", rb"%PDF-"),
    _Recognized("safetensors file", "these are weights; {data} takes the samples", r".*\.safetensors"),
    _Recognized(
        "ONNX or GGUF model", "this is a model; {data} takes the samples", r".*\.(onnx|gguf|tflite|pt2)", rb"GGUF"
    ),
)  # fmt: skip


def recognized(files: Files) -> dict[str, Any] | None:
    """What to tell a user about a format that is known but not read.

    Returns:
        Arguments of a `DataError`, or `None` if it is nothing known.
    """
    names = list(files.names()[:_MAX_NAMES])
    matches = [(kind, name) for name in names if (kind := _by_name(name))]
    if not matches:
        matches = [(kind, name) for name in names[:4] if (kind := _by_first_bytes(files, name))]
    counts = Counter(kind for kind, _ in matches)
    if not counts or (max(counts.values()) * 2 < len(names) and len(names) > 8):
        return None  # one among many says nothing about the rest
    kind, count = counts.most_common(1)[0]
    return {
        "what": f"{files.root} holds {plural(count, 'file')} that fewbit does not read: {kind.title}",
        "code": "format-unsupported",
        "where": next(name for other, name in matches if other is kind),
        "expected": "a format of `fewbit list data-formats`",
        "hint": kind.hint,
    }


def labels_alone(files: Files) -> dict[str, Any] | None:
    """What to tell a user who gave the `labels` folder of a YOLO dataset: its texts are no documents."""
    from fewbit.data.detection.yolo_labels import looks_like_labels
    from fewbit.data.images.file_source import read_head

    folder = Path(files.root).absolute()
    labels = next((path for path in (folder, folder.parent) if path.name.lower() == "labels"), None)
    names = files.names()[:_MAX_NAMES]
    if labels is None or not all(name.lower().endswith(".txt") for name in names):
        return None
    heads = [head for name in names[:32] if (head := read_head(files, name, 4096)).strip()]
    if 2 * sum(map(looks_like_labels, heads)) <= len(heads):
        return None
    return {
        "what": f"{files.root} holds label files of YOLO without their images", "code": "labels-alone",
        "where": names[0], "expected": "the folder that holds images and labels",
        "hint": f"give {Path(files.root).parents[0 if labels == folder else 1]}; as documents: {{data_format=text}}",
    }  # fmt: skip


def _by_name(name: str) -> _Recognized | None:
    lower = name.lower()
    candidates = (lower, lower.rpartition("/")[2])
    return next((kind for kind in _TABLE if any(re.fullmatch(kind.names, text) for text in candidates)), None)


def _by_first_bytes(files: Files, name: str) -> _Recognized | None:
    try:
        head = files.read(name, 64)
    except SampleError:
        return None
    return next((kind for kind in _TABLE if kind.magic and re.match(kind.magic, head, re.DOTALL)), None)
