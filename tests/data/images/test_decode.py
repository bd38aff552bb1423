# SPDX-License-Identifier: Apache-2.0
import os
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps, TiffImagePlugin

from fewbit.data import limits
from fewbit.data.images.decode import ImageFault, image_size, read_header, read_image


def save(path, pixels, mode=None, **options):
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(path, **options)
    return path


def gradient(height=20, width=10):
    rows, columns = np.mgrid[:height, :width]
    return np.stack([rows * 12, columns * 20, rows + columns], axis=2).astype(np.uint8)


def png_chunks(*chunks):
    parts = [b"\x89PNG\r\n\x1a\n"]
    for kind, body in chunks:
        parts.append(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)))
    return b"".join(parts)


def code_of(path):
    with pytest.raises(ImageFault) as caught:
        read_image(path)
    return caught.value.code


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.tiff", "a.ppm", "a.webp"])
def test_lossless_kinds_come_back_as_they_were(tmp_path, name):
    options = {"lossless": True} if name.endswith("webp") else {}
    path = save(tmp_path / name, gradient(), **options)
    pixels = read_image(path)
    assert np.array_equal(pixels, gradient())
    assert pixels.dtype == np.uint8 and pixels.flags.writeable and pixels.flags.c_contiguous
    assert image_size(path) == (10, 20)


def test_jpeg_is_what_pillow_decodes(tmp_path):
    path = save(tmp_path / "a.jpg", gradient(64, 48))
    assert np.array_equal(read_image(str(path)), np.asarray(Image.open(path).convert("RGB")))


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.tiff"])
def test_exif_orientation_is_always_applied(tmp_path, name, turn):
    exif = Image.Exif()
    exif[0x0112] = turn
    options = {"lossless": True} if name.endswith("webp") else {}
    path = save(tmp_path / name, gradient(10, 20), exif=exif, **options)
    with Image.open(path) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    pixels = read_image(path)
    assert np.array_equal(pixels, expected)
    assert image_size(path) == (pixels.shape[1], pixels.shape[0]) == ((10, 20) if turn > 4 else (20, 10))


def test_exif_behind_the_pixels_of_a_png_counts_too(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    plain = save(tmp_path / "plain.png", gradient(10, 20)).read_bytes()
    block = exif.tobytes().removeprefix(b"Exif\0\0")
    chunk = png_chunks((b"eXIf", block))[8:]
    (tmp_path / "late.png").write_bytes(plain[:-12] + chunk + plain[-12:])
    assert image_size(tmp_path / "late.png") == (10, 20)
    assert read_image(tmp_path / "late.png").shape == (20, 10, 3)


def test_sixteen_bit_grey_is_scaled_and_not_clipped(tmp_path):
    deep = np.linspace(0, 65535, 256, dtype=np.uint16).reshape(16, 16)
    path = save(tmp_path / "a.png", deep)
    pixels = read_image(path)
    assert len(np.unique(pixels)) == 256
    assert pixels.min() == 0 and pixels.max() == 255
    with Image.open(path) as image:
        assert len(np.unique(np.asarray(image.convert("RGB")))) < 256  # the defect of the plain way


def test_sixteen_bit_big_endian_tiff_and_pgm_are_scaled_alike(tmp_path):
    deep = np.linspace(0, 65535, 256, dtype=np.uint16).reshape(16, 16)
    expected = read_image(save(tmp_path / "a.png", deep))
    save(tmp_path / "a.tiff", Image.frombytes("I;16B", (16, 16), deep.astype(">u2").tobytes()))
    (tmp_path / "a.pgm").write_bytes(b"P5 16 16 65535\n" + deep.astype(">u2").tobytes())
    assert np.array_equal(read_image(tmp_path / "a.tiff"), expected)
    assert np.array_equal(read_image(tmp_path / "a.pgm"), expected)


def test_a_dark_sixteen_bit_png_stays_dark(tmp_path):
    deep = np.full((12, 12), 200, np.uint16)
    assert read_image(save(tmp_path / "a.png", deep)).max() == 1


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        (np.linspace(0, 1, 144, dtype=np.float32), 0, 255),
        (np.linspace(0, 200, 144, dtype=np.float32), 0, 200),
        (np.linspace(0, 65535, 144, dtype=np.float32), 0, 255),
        (np.linspace(-5, 1e6, 144, dtype=np.float32), 0, 255),
        (np.arange(144, dtype=np.int32), 0, 143),
        (np.arange(144, dtype=np.int32) * 10_000_000, 0, 255),
    ],
)
def test_i_and_f_images_are_scaled_to_their_range(tmp_path, values, low, high):
    pixels = read_image(save(tmp_path / "a.tiff", values.reshape(12, 12)))
    assert (pixels.min(), pixels.max()) == (low, high)
    assert len(np.unique(pixels)) > 100


def test_a_float_image_with_nan_and_infinity_decodes(tmp_path):
    values = np.zeros((12, 12), np.float32)
    values[0, 0], values[1, 1], values[2, 2] = np.nan, np.inf, 1
    assert read_image(save(tmp_path / "a.tiff", values))[2, 2, 0] == 255


def test_transparent_pixels_show_the_background_not_the_hidden_colour(tmp_path):
    rgba = np.zeros((12, 12, 4), np.uint8)
    rgba[:, :, 0] = 255  # a hidden red
    rgba[:6, :, 3] = 255
    path = save(tmp_path / "a.png", rgba)
    assert read_image(path)[0, 0].tolist() == [255, 0, 0]
    assert read_image(path)[11, 0].tolist() == [255, 255, 255]
    assert read_image(path, background=(0, 0, 255))[11, 0].tolist() == [0, 0, 255]


def test_grey_with_alpha_is_composited(tmp_path):
    path = save(tmp_path / "a.png", Image.new("LA", (12, 12), (100, 0)))
    assert read_image(path, background=(1, 2, 3))[0, 0].tolist() == [1, 2, 3]


def test_palette_with_transparency_is_composited(tmp_path):
    image = Image.new("P", (12, 12), 1)
    image.putpalette([255, 0, 0, 0, 255, 0])
    assert read_image(save(tmp_path / "plain.png", image))[0, 0].tolist() == [0, 255, 0]
    path = save(tmp_path / "a.png", image, transparency=1)
    assert read_image(path, background=(9, 9, 9))[0, 0].tolist() == [9, 9, 9]
    path = save(tmp_path / "b.png", image, transparency=bytes([255, 0]))
    assert read_image(path, background=(9, 9, 9))[0, 0].tolist() == [9, 9, 9]


def test_a_colour_key_is_transparent_in_rgb_and_deep_grey(tmp_path):
    path = save(tmp_path / "a.png", Image.new("RGB", (12, 12), (1, 2, 3)), transparency=(1, 2, 3))
    assert read_image(path, background=(7, 7, 7))[0, 0].tolist() == [7, 7, 7]
    header = struct.pack(">IIBBBBB", 2, 1, 16, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0" + struct.pack(">HH", 500, 65535))
    content = png_chunks((b"IHDR", header), (b"tRNS", struct.pack(">H", 500)), (b"IDAT", pixels), (b"IEND", b""))
    (tmp_path / "b.png").write_bytes(content)
    assert read_image(tmp_path / "b.png", background=(7, 8, 9)).tolist() == [[[7, 8, 9], [255, 255, 255]]]


def test_one_bit_images_are_black_and_white(tmp_path):
    checks = (np.indices((12, 12)).sum(axis=0) % 2).astype(bool)
    pixels = read_image(save(tmp_path / "a.png", Image.fromarray(checks)))
    assert np.array_equal(pixels[:, :, 0], checks * 255)


def test_cmyk_jpeg_is_inverted_only_with_adobes_marker(tmp_path):
    path = save(tmp_path / "a.jpg", Image.new("CMYK", (16, 16), (0, 255, 255, 0)), quality=95)
    red = read_image(path)[8, 8].astype(int)
    assert red[0] > 240 and red[1] < 15 and red[2] < 15
    content = path.read_bytes()
    at = content.index(b"\xff\xee")
    length = int.from_bytes(content[at + 2 : at + 4], "big") + 2
    (tmp_path / "plain.jpg").write_bytes(content[:at] + content[at + length :])
    # Without the marker the same stored bytes mean the opposite amounts of ink: full cyan and black.
    assert read_image(tmp_path / "plain.jpg")[8, 8].max() < 15


def test_cmyk_tiff_is_read_as_ink(tmp_path):
    path = save(tmp_path / "a.tiff", Image.new("CMYK", (16, 16), (0, 255, 255, 0)))
    assert read_image(path)[8, 8].tolist() == [255, 0, 0]


def test_a_zero_byte_file_is_named_as_such(tmp_path):
    (tmp_path / "a.jpg").touch()
    assert code_of(tmp_path / "a.jpg") == "image-empty"


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.bmp", "a.ppm"])
def test_a_truncated_file_is_found_by_decoding(tmp_path, name):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path = save(tmp_path / name, noise)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert image_size(path) == (64, 64)
    assert code_of(path) == "image-truncated"


def test_a_page_of_html_is_no_image(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"<!DOCTYPE html><title>404</title>")
    with pytest.raises(ImageFault, match="<!DOCTYPE html") as caught:
        read_image(tmp_path / "a.jpg")
    assert caught.value.code == "image-unreadable"


def test_a_missing_file_and_a_pipe_are_faults(tmp_path):
    assert code_of(tmp_path / "none.jpg") == "image-unreadable"
    os.mkfifo(tmp_path / "pipe.jpg")
    assert code_of(tmp_path / "pipe.jpg") == "image-unreadable"
    assert code_of(tmp_path) == "image-unreadable"


def test_heic_and_avif_are_unsupported_kinds(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"\0\0\0\x1cftypheic" + bytes(64))
    (tmp_path / "b.jpg").write_bytes(b"\0\0\0\x1cftypavif" + bytes(64))
    assert code_of(tmp_path / "a.jpg") == code_of(tmp_path / "b.jpg") == "image-kind-unsupported"


def test_a_bomb_is_judged_by_its_header(tmp_path):
    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    (tmp_path / "a.png").write_bytes(png_chunks((b"IHDR", header), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b"")))
    assert code_of(tmp_path / "a.png") == "image-bomb"
    canvas = b"VP8X" + struct.pack("<I", 10) + bytes(4) + (99_999).to_bytes(3, "little") * 2
    riff = b"RIFF" + struct.pack("<I", len(canvas) + 4) + b"WEBP" + canvas
    (tmp_path / "a.webp").write_bytes(riff)
    assert code_of(tmp_path / "a.webp") == "image-bomb"


def test_a_file_larger_than_any_image_is_not_read(tmp_path):
    with open(tmp_path / "a.jpg", "wb") as file:
        file.write(b"\xff\xd8\xff")
        file.truncate(limits.IMAGE_PIXELS * 8 + 1)
    assert code_of(tmp_path / "a.jpg") == "image-bomb"


def test_endless_padding_is_given_up_on(tmp_path, monkeypatch):
    monkeypatch.setattr("fewbit.data.images.decode._READS", 1000)
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8\xff" + b"\xff" * (5 << 20))
    assert code_of(tmp_path / "a.jpg") == "image-bomb"


def test_a_large_file_is_read_from_disk_like_a_small_one(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (1500, 1000, 3), dtype=np.uint8)
    for name, options in [("a.bmp", {}), ("a.tiff", {"compression": "tiff_lzw"})]:
        path = save(tmp_path / name, noise, **options)
        assert path.stat().st_size > 4 << 20
        assert np.array_equal(read_image(path), noise)


def test_frames_and_pages_are_counted(tmp_path):
    frames = [Image.new("RGB", (12, 12), (i * 80, 0, 0)) for i in range(3)]
    for name in ("a.gif", "a.tiff", "a.webp", "a.png"):
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
        assert read_header(tmp_path / name).frames == 3
        assert read_image(tmp_path / name).shape == (12, 12, 3)


def test_pillows_globals_and_the_warning_filters_stay_as_they_were(tmp_path):
    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))
    (tmp_path / "bad.tif").write_bytes(b"II*\0" + bytes(range(200)))
    read_image(save(tmp_path / "a.png", gradient()))
    with pytest.raises(ImageFault):
        read_image(tmp_path / "bad.tif")
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))


def test_a_large_but_legal_image_gives_no_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 150)  # the suite turns warnings into errors
    assert read_image(save(tmp_path / "a.png", gradient())).shape == (20, 10, 3)


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.bmp", "a.tiff", "a.ppm", "a.webp", "a.gif"])
def test_mutated_files_end_in_pixels_or_a_fault(tmp_path, name):
    random = np.random.default_rng(7)
    exif = Image.Exif()
    exif[TiffImagePlugin.IMAGEDESCRIPTION] = "x"
    options = {} if name[2:] in ("bmp", "ppm", "gif") else {"exif": exif}
    content = save(tmp_path / name, gradient(12, 12), **options).read_bytes()
    target = tmp_path / ("mutant" + name[1:])
    for _ in range(60):
        target.write_bytes(mutate(content, random))
        for read in (read_image, read_header):
            try:
                read(target)
            except ImageFault as fault:
                assert fault.code.startswith("image-") and fault.message


def mutate(content, random):
    data = bytearray(content)
    at = int(random.integers(len(data)))
    size = int(random.integers(1, 9))
    match random.integers(5):
        case 0:
            data[at] ^= 1 << int(random.integers(8))
        case 1:
            del data[at : at + size]
        case 2:
            data[at:at] = random.bytes(size)
        case 3:
            del data[at:]
        case _:
            data[at:at] = data[at : at + 4 * size]
    return bytes(data)
