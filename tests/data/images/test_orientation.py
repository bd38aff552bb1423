# SPDX-License-Identifier: Apache-2.0
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from fewbit.data.images.orientation import from_exif, orientation, upright


def exif(turn):
    block = Image.Exif()
    block[0x010E] = "a description"
    block[0x0112] = turn
    return block.tobytes()


def test_exif_is_read_with_and_without_its_mark():
    assert from_exif(exif(6)) == from_exif(exif(6).removeprefix(b"Exif\0\0")) == 6


def test_a_png_text_profile_and_xmp_are_understood():
    text = "\nexif\n      40\n" + exif(8).hex()
    assert orientation({"Raw profile type exif": text}) == 8
    assert orientation({"Raw profile type exif": "\nexif\n 3\nnot hex"}) == 1
    assert orientation({"xmp": b'<rdf tiff:Orientation="3"/>'}) == 3
    assert orientation({"XML:com.adobe.xmp": "<tiff:Orientation>5</tiff:Orientation>"}) == 5


def test_values_outside_one_to_eight_mean_nothing():
    assert orientation({"exif": exif(0)}) == orientation({"exif": exif(9)}) == orientation({}) == 1


@given(st.binary(max_size=200))
@example(b"II*\0\xff\xff\xff\xff")
@example(b"MM\0*\0\0\0\x08\xff\xff")
@settings(deadline=None, max_examples=200)
def test_any_block_gives_an_orientation(block):
    assert 1 <= orientation({"exif": block, "xmp": block}) <= 8
    assert 1 <= orientation({"exif": b"II*\0" + block}) <= 8


@given(st.integers(1, 8))
@settings(deadline=None, max_examples=8)
def test_turning_moves_pixels_and_loses_none(turn):
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    turned = upright(pixels, turn)
    assert turned.shape == ((4, 2, 3) if turn > 4 else (2, 4, 3))
    assert sorted(turned.reshape(-1).tolist()) == list(range(24))
