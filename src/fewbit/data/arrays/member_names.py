# SPDX-License-Identifier: Apache-2.0
"""Which member names an archive may have: none that could lead anywhere when someone unpacks it."""

from __future__ import annotations

import re

_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


def unsafe_name(name: str) -> str | None:
    """Why a member name is refused, or `None` when it is harmless.

    >>> unsafe_name("input:0.npy"), unsafe_name("encoder/mask.npy")
    (None, None)
    >>> unsafe_name("../x.npy")
    "it climbs out of its folder with '..'"
    """
    if "\0" in name:
        return "it contains a NUL byte"
    if name.startswith(("/", "\\")) or _DRIVE.match(name):
        return "it is an absolute path"
    if ".." in re.split(r"[\\/]", name):
        return "it climbs out of its folder with '..'"
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        return "it is not valid Unicode"
    if len(name.encode()) > 0xFFFF:
        return "it is longer than 65,535 bytes"
    return None
