# SPDX-License-Identifier: Apache-2.0
"""Decoding: every format and mode as upright RGB, and every kind of damage as a typed issue."""

import io
import random
import struct
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps

from data.mutation import mutate_bytes
from fewbit.data.images import decode
from fewbit.data.images.decode import MOST_BYTES, decode_image, image_size
from fewbit.data.images.masks import decode_mask
from fewbit.data.types import DataReport, Location, SampleError

FORMATS = ["JPEG", "PNG", "BMP", "TIFF", "PPM", "WEBP", "GIF"]


def encode(image, format="PNG", **options):
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def gradient(height=20, width=10):
    rows, columns = np.mgrid[:height, :width]
    return np.stack([rows * 12, columns * 20, rows + columns], axis=2).astype(np.uint8)


def noise(height, width):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def png_chunks(*chunks):
    parts = [b"\x89PNG\r\n\x1a\n"]
    for kind, body in chunks:
        parts.append(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)))
    return b"".join(parts)


def code_of(content, read=decode_image):
    with pytest.raises(SampleError) as caught:
        read(content, Location("a/1.png"))
    assert caught.value.issue.location == Location("a/1.png") and caught.value.issue.message
    return caught.value.code


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM", "WEBP"])
def test_lossless_formats_come_back_as_they_were(format):
    content = encode(gradient(), format, **({"lossless": True} if format == "WEBP" else {}))
    pixels = decode_image(content)
    np.testing.assert_array_equal(pixels, gradient())
    assert pixels.dtype == np.uint8 and pixels.flags.writeable and pixels.flags.c_contiguous
    assert image_size(content) == (10, 20)


def test_bytes_and_streams_give_what_pillow_decodes(tmp_path):
    content = encode(gradient(64, 48), "JPEG")
    (tmp_path / "a.jpg").write_bytes(content)
    expected = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    np.testing.assert_array_equal(decode_image(content), expected)
    with open(tmp_path / "a.jpg", "rb") as stream:
        stream.seek(5)  # a stream that was used before
        np.testing.assert_array_equal(decode_image(stream), expected)
        assert image_size(stream) == (48, 64)


# Orientation


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation_is_always_applied(format, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encode(gradient(10, 20), format, exif=exif, **({"lossless": True} if format == "WEBP" else {}))
    with Image.open(io.BytesIO(content)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    pixels = decode_image(content)
    np.testing.assert_array_equal(pixels, expected)
    assert image_size(content) == (pixels.shape[1], pixels.shape[0]) == ((10, 20) if orientation > 4 else (20, 10))


def test_exif_behind_the_pixels_of_a_png_counts_too():
    exif = Image.Exif()
    exif[0x0112] = 6
    plain = encode(gradient(10, 20))
    chunk = png_chunks((b"eXIf", exif.tobytes().removeprefix(b"Exif\0\0")))[8:]
    content = plain[:-12] + chunk + plain[-12:]
    assert image_size(content) == (10, 20)
    assert decode_image(content).shape == (20, 10, 3)


# Modes


def test_sixteen_bit_grey_is_scaled_and_not_clipped():
    deep = np.linspace(0, 65535, 256, dtype=np.uint16).reshape(16, 16)
    content = encode(deep)
    pixels = decode_image(content)
    assert len(np.unique(pixels)) == 256 and pixels.min() == 0 and pixels.max() == 255
    big_endian = encode(Image.frombytes("I;16B", (16, 16), deep.astype(">u2").tobytes()), "TIFF")
    np.testing.assert_array_equal(decode_image(big_endian), pixels)
    np.testing.assert_array_equal(decode_image(b"P5 16 16 65535\n" + deep.astype(">u2").tobytes()), pixels)
    assert decode_image(encode(np.full((12, 12), 200, np.uint16))).max() == 1  # dark stays dark


@pytest.mark.parametrize(
    ("dtype", "first", "last", "black", "white"),
    [
        ("float32", 0, 1, 0, 255), ("float32", 0, 200, 0, 200), ("float32", 0, 65535, 0, 255),
        ("float32", -5, 1e6, 0, 255), ("int32", 0, 143, 0, 143), ("int32", 0, 1_430_000_000, 0, 255),
    ],
)  # fmt: skip
def test_numbers_without_a_range_are_scaled_to_the_narrowest_usual_one(dtype, first, last, black, white):
    values = np.linspace(first, last, 144).reshape(12, 12).astype(dtype)
    pixels = decode_image(encode(values, "TIFF"))
    assert (pixels.min(), pixels.max()) == (black, white) and len(np.unique(pixels)) > 100


def test_nan_and_infinity_are_black():
    values = np.zeros((12, 12), np.float32)
    values[0, 0], values[1, 1], values[2, 2] = np.nan, np.inf, 1
    pixels = decode_image(encode(values, "TIFF"))
    assert pixels[2, 2, 0] == 255 and pixels[1, 1, 0] == pixels[0, 0, 0] == 0


def test_transparent_pixels_show_the_background_not_the_hidden_color():
    rgba = np.zeros((12, 12, 4), np.uint8)
    rgba[:, :, 0] = 255  # a hidden red
    rgba[:6, :, 3] = 255
    content = encode(rgba)
    assert decode_image(content)[0, 0].tolist() == [255, 0, 0]
    assert decode_image(content)[11, 0].tolist() == [255, 255, 255]
    assert decode_image(content, background=(0, 0, 255))[11, 0].tolist() == [0, 0, 255]
    assert decode_image(encode(Image.new("LA", (12, 12), (100, 0))), background=(1, 2, 3))[0, 0].tolist() == [1, 2, 3]


def test_transparency_of_palettes_and_color_keys_is_composited():
    palette = Image.new("P", (12, 12), 1)
    palette.putpalette([255, 0, 0, 0, 255, 0])
    assert decode_image(encode(palette))[0, 0].tolist() == [0, 255, 0]
    for transparency in (1, bytes([255, 0])):
        content = encode(palette, transparency=transparency)
        assert decode_image(content, background=(9, 9, 9))[0, 0].tolist() == [9, 9, 9]
    content = encode(Image.new("RGB", (12, 12), (1, 2, 3)), transparency=(1, 2, 3))
    assert decode_image(content, background=(7, 7, 7))[0, 0].tolist() == [7, 7, 7]
    header = struct.pack(">IIBBBBB", 2, 1, 16, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0" + struct.pack(">HH", 500, 65535))
    deep = png_chunks((b"IHDR", header), (b"tRNS", struct.pack(">H", 500)), (b"IDAT", pixels), (b"IEND", b""))
    assert decode_image(deep, background=(7, 8, 9)).tolist() == [[[7, 8, 9], [255, 255, 255]]]


def test_cmyk_jpeg_is_inverted_only_with_adobes_marker():
    content = encode(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95)
    red = decode_image(content)[8, 8].astype(int)
    assert red[0] > 240 and red[1] < 15 and red[2] < 15
    marker = content.index(b"\xff\xee")
    length = int.from_bytes(content[marker + 2 : marker + 4], "big") + 2
    # Without the marker the same bytes mean the opposite amounts of ink: full cyan and black.
    assert decode_image(content[:marker] + content[marker + length :])[8, 8].max() < 15
    tiff = encode(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "TIFF")
    assert decode_image(tiff)[8, 8].tolist() == [255, 0, 0]


# Damage


@pytest.mark.parametrize("format", ["JPEG", "PNG", "BMP", "PPM", "GIF", "WEBP"])
def test_a_truncated_file_is_found_by_decoding(format):
    content = encode(noise(64, 64), format)
    half = content[: len(content) // 2]
    assert code_of(half) in ("image-truncated", "image-unreadable")
    if format not in ("GIF", "WEBP"):
        assert code_of(half) == "image-truncated" and image_size(half) == (64, 64)


def test_verify_passes_a_truncated_jpeg_that_decoding_finds():
    content = encode(noise(64, 64), "JPEG")[:-500]
    with Image.open(io.BytesIO(content)) as image:
        image.verify()
    assert code_of(content) == "image-truncated"


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (b"", "image-empty", "0 bytes"),
        (b"<!DOCTYPE html><title>404</title>", "image-unreadable", "'<!DOCTYPE html><'"),
        (b"version https://git-lfs.github.com/spec/v1\n", "image-unreadable", "git lfs pull"),
        (b"\x00\x01\x02", "image-unreadable", "00 01 02"),
        (b"BM is how this text begins, and it is no bitmap", "image-unreadable", "BM is how"),
        (b"\0\0\0\x1cftypheic" + bytes(64), "image-kind-unsupported", "HEIC"),
        (b"\0\0\0\x1cftypavif" + bytes(64), "image-kind-unsupported", "AVIF"),
    ],
)
def test_what_is_no_image_says_how_it_begins(content, code, message):
    with pytest.raises(SampleError) as caught:
        decode_image(content)
    assert caught.value.code == code and message in caught.value.issue.message


def test_the_size_is_judged_before_decoding():
    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    png = png_chunks((b"IHDR", header), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b""))
    assert code_of(png) == code_of(png, image_size) == "image-bomb"


@pytest.mark.parametrize(
    "body",
    [
        b"VP8X" + struct.pack("<I", 10) + bytes(4) + (99_999).to_bytes(3, "little") * 2,
        b"VP8 " + struct.pack("<I", 10) + bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", 16_383, 16_383),
        b"VP8L" + struct.pack("<I", 10) + b"\x2f" + (16_382 | 16_382 << 14).to_bytes(4, "little") + bytes(5),
    ],
)
def test_the_canvas_of_a_webp_is_judged_before_its_decoder_is_made(body):
    assert code_of(b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body) == "image-bomb"


def test_a_file_larger_than_any_image_is_not_read(tmp_path):
    with open(tmp_path / "a.jpg", "wb+") as stream:
        stream.write(b"\xff\xd8\xff")
        stream.truncate(MOST_BYTES + 1)
        assert code_of(stream) == "image-bomb"


def test_endless_padding_is_given_up_on(monkeypatch):
    monkeypatch.setattr(decode, "MOST_READS", 1000)
    assert code_of(b"\xff\xd8\xff" + b"\xff" * (5 << 20)) == "image-bomb"


def test_a_large_file_is_read_like_a_small_one():
    pixels = noise(1500, 1000)
    for format, options in (("BMP", {}), ("TIFF", {"compression": "tiff_lzw"})):
        content = encode(pixels, format, **options)
        assert len(content) > 4 << 20
        np.testing.assert_array_equal(decode_image(io.BufferedReader(io.BytesIO(content))), pixels)


# Frames


@pytest.mark.parametrize(
    ("format", "code"), [("GIF", "image-animated"), ("WEBP", "image-animated"), ("TIFF", "image-multipage")]
)
def test_the_first_of_several_frames_is_read_and_noted(format, code):
    frames = [Image.new("RGB", (12, 12), (number * 80, 0, 0)) for number in range(3)]
    options = {"lossless": True} if format == "WEBP" else {}
    content = encode(frames[0], format, save_all=True, append_images=frames[1:], **options)
    report = DataReport()
    assert decode_image(content, Location("a.gif"), report=report)[0, 0].tolist() == [0, 0, 0]
    assert report.counts == {code: 1} and report.issues[0].message in ("3 frames", "3 pages")


# Neither globals nor warnings


def test_pillows_globals_and_the_warning_filters_stay_as_they_were(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 150)  # a warning here would be an error
    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))
    assert decode_image(encode(gradient())).shape == (20, 10, 3)
    with pytest.raises(SampleError):
        decode_image(b"II*\0" + bytes(range(200)))
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))


def test_threads_decode_at_once():
    contents = [encode(gradient() // (number + 1), format) for number in range(8) for format in FORMATS]
    expected = [decode_image(content) for content in contents]
    with ThreadPoolExecutor(4) as pool:
        for pixels, reference in zip(pool.map(decode_image, contents * 4), expected * 4):
            np.testing.assert_array_equal(pixels, reference)


@pytest.mark.parametrize("format", FORMATS)
def test_mutated_files_end_in_pixels_or_an_issue(format):
    exif = Image.Exif()
    exif[270] = "x"
    options = {} if format in ("BMP", "PPM", "GIF") else {"exif": exif}
    content = encode(gradient(12, 12), format, **options)
    for seed in range(80):
        mutant = mutate_bytes(content, random.Random(seed))
        for read in (decode_image, image_size, decode_mask):
            try:
                read(mutant)
            except SampleError as error:
                assert error.code.startswith(("image-", "mask-")) and error.issue.message
