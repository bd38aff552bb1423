# SPDX-License-Identifier: Apache-2.0
"""Tensors found where they lie: the rows are those the library reads; damage is told, and nothing else raised."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from fewbit.errors import DataError, UsageError
from fewbit.modules.checkpoint_files import find_tensors
from fewbit.modules.tensor_file import same_bits

KINDS = [torch.bfloat16, torch.float32, torch.int64, torch.uint8, torch.float8_e4m3fn, torch.bool]


def some(count=6):
    generator = torch.Generator().manual_seed(0)
    return {
        f"{number}": torch.randint(0, 2, (number + 1, 3, 2), generator=generator).to(KINDS[number % len(KINDS)])
        for number in range(count)
    }


def in_files(folder, tensors):
    """Every tensor in a file of its own, with an index."""
    names = {name: f"model-{name}.safetensors" for name in tensors}
    for name, file in names.items():
        save_file({name: tensors[name]}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


@pytest.mark.parametrize("several", [False, True])
def test_rows_are_those_of_the_library(several, tmp_path):
    tensors = some()
    if several:
        in_files(tmp_path, tensors)
    else:
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    found = find_tensors(tmp_path)
    assert set(found) == set(tensors)
    for name, place in found.items():
        wanted = load_file(place.path)[name]
        assert (place.dtype, place.shape) == (wanted.dtype, tuple(wanted.shape))
        for start in range(len(wanted)):
            for stop in range(start, len(wanted) + 1):
                assert same_bits(place.rows(start, stop), wanted[start:stop])


def test_damaged_files_are_told(tmp_path):
    """A bit turned, bytes cut off or put in: what is found lies in the file, or a DataError says why not."""
    path = tmp_path / "model.safetensors"
    save_file(some(), path)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    draw = random.Random(0)
    refused = 0
    for _ in range(400):
        content = bytearray(whole)
        place = draw.randrange(header)
        kind = draw.randrange(3)
        if kind == 0:
            content[place] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del content[draw.randrange(len(content)) :]
        else:
            content[place:place] = bytes([draw.randrange(256)])
        path.write_bytes(content)
        try:
            for place in find_tensors(tmp_path).values():
                place.rows(0, place.shape[0] if place.shape else 1)
        except DataError:
            refused += 1
    assert refused > 250


@pytest.mark.parametrize(
    "index",
    ["[]", "{", '{"weight_map": {"0": "../model-0.safetensors"}}', '{"weight_map": {"0": 3}}', '{"weight_map": {}}',
     '{"weight_map": {"0": "model-1.safetensors"}}', '{"weight_map": {"9": "model-0.safetensors"}}'],
)  # fmt: skip
def test_an_index_that_is_not_true(index, tmp_path):
    in_files(tmp_path, some(2))
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises((DataError, UsageError), match=r"the file cannot be read|no weights here"):
        find_tensors(tmp_path)


def test_no_tensors_at_all(tmp_path):
    with pytest.raises(UsageError, match="no weights here"):
        find_tensors(tmp_path)
