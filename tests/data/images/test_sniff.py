# SPDX-License-Identifier: Apache-2.0
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fewbit.data.images.sniff import EXTENSIONS, HEAD, NAMES, is_image_name, sniff, suffix


@pytest.mark.parametrize("kind", ["jpeg", "png", "ppm", "bmp", "tiff", "webp", "gif"])
def test_what_pillow_writes_is_recognised(kind):
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(buffer, kind.upper())
    assert sniff(buffer.getvalue()[:HEAD]) == kind


def test_kinds_that_are_only_reported_are_recognised():
    assert sniff(b"\0\0\0\x1cftypheic\0\0\0\0") == "heic"
    assert sniff(b"\0\0\0\x1cftypavif\0\0\0\0") == "avif"
    assert sniff(b"8BPS\0\1") == "psd"


@pytest.mark.parametrize(
    "text", [b"", b"BM", b"BMW is a maker of cars, not a bitmap", b"P5x", b"<html>", b"RIFF1234WAVE"]
)
def test_text_and_sound_are_no_images(text):
    assert sniff(text) is None


def test_the_extensions_are_those_of_torchvision_in_any_case():
    assert sorted(EXTENSIONS) == [".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"]
    assert is_image_name("a/b.JPeG")
    assert not is_image_name("a/b.gif")
    assert all(names[0] in EXTENSIONS for names in NAMES.values())


@given(st.binary(max_size=64))
@settings(deadline=None, max_examples=200)
def test_any_bytes_have_a_kind_or_none(head):
    assert sniff(head) is None or isinstance(sniff(head), str)


@given(st.text(max_size=20))
@settings(deadline=None, max_examples=200)
def test_a_suffix_is_the_end_of_the_name(name):
    assert name.lower().endswith(suffix(name).lower())
    assert "/" not in suffix(name)
