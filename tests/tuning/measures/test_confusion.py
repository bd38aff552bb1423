# SPDX-License-Identifier: Apache-2.0
"""Overlap of regions against sets of pixels."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.tuning.measures.confusion import confusion, overlaps


@given(st.integers(0, 10**6), st.integers(1, 6))
def test_overlaps_are_those_of_sets_of_pixels(seed, classes):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (2, 5, 6), generator=generator)
    said = torch.randint(0, classes, (2, 5, 6), generator=generator)
    labels[0, :2] = -100
    known = [(place, int(labels.flatten()[place])) for place in range(60) if labels.flatten()[place] != -100]
    table = confusion(labels, said, classes)
    assert table.sum() == len(known)
    for number, share in enumerate(overlaps(table.double()).tolist()):
        is_it = {place for place, label in known if label == number}
        said_to_be = {place for place, _ in known if said.flatten()[place] == number}
        union = is_it | said_to_be
        assert math.isnan(share) if not union else math.isclose(share, len(is_it & said_to_be) / len(union))
