# SPDX-License-Identifier: Apache-2.0
"""First bytes, suffixes and orientation blocks."""

import io
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fewbit.data.images.pixels import exif_orientation, orientation_of
from fewbit.data.images.signatures import HEAD, SKIPPED_SUFFIXES, SUFFIXES, image_format, is_image_name, suffix_of

EXIF_6 = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0"


@pytest.mark.parametrize("format", ["JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP", "GIF"])
def test_what_pillow_writes_is_recognized(format):
    stream = io.BytesIO()
    Image.new("RGB", (12, 12)).save(stream, format)
    assert image_format(stream.getvalue()[:HEAD]) == format


@pytest.mark.parametrize("text", [b"BMW is a brand of cars and more", b"RIFF\0\0\0\0WAVE", b"", b"P", b"P7 of a paper"])
def test_text_and_sound_are_no_images(text):
    assert image_format(text) is None


def test_suffixes_are_those_of_torchvision_and_gif():
    assert {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif"} == SUFFIXES
    assert {".jfif", ".jpe", ".heic", ".avif", ".jxl", ".svg", ".psd"} <= SKIPPED_SUFFIXES
    assert not SUFFIXES & SKIPPED_SUFFIXES
    assert is_image_name("x/A.JpEg") and not is_image_name("x.jpg/readme") and not is_image_name(".png")


@given(st.binary(max_size=64), st.text())
def test_any_bytes_and_any_name_are_answered(head, name):
    assert image_format(head) is None or isinstance(image_format(head), str)
    assert exif_orientation(head) in (None, *range(1, 9))
    assert orientation({"exif": head, "xmp": head}) in range(1, 9)
    assert suffix_of(name).count(".") == bool(suffix_of(name)) and "/" not in suffix_of(name)


def orientation(info):
    return orientation_of(SimpleNamespace(format="PNG", info=info))


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"exif": EXIF_6}, 6),
        ({"exif": b"Exif\0\0" + EXIF_6}, 6),
        ({"exif": EXIF_6.replace(b"\x06", b"\x09")}, 1),  # no such orientation
        ({"Raw profile type exif": f"\nexif\n{len(EXIF_6)}\n{EXIF_6.hex()}\n"}, 6),
        ({"Raw profile type exif": "\nexif\n8\nzz"}, 1),
        ({"xmp": b'<x tiff:Orientation="8"/>'}, 8),
        ({"XML:com.adobe.xmp": "<tiff:Orientation>3</tiff:Orientation>"}, 3),
    ],
)
def test_orientation_in_exif_png_text_and_xmp(info, expected):
    assert orientation(info) == expected
