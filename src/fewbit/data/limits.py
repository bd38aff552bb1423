# SPDX-License-Identifier: Apache-2.0
"""How much one piece of untrusted data may ask for. Past a limit there is a finding, never an allocation."""

from __future__ import annotations

ROW_BYTES = 64 << 20
"""One row of a text file; a 10 GB line without a newline is reported, not read."""

IMAGE_PIXELS = 178_956_970
"""One decoded image: the number at which Pillow itself calls it a bomb."""

ARRAY_BYTES = 4 << 30
"""One array of a sample, as its header claims it."""

EXPANSION = 1_000
"""How many times larger than its compressed form a stream may become before it is called a bomb."""

EXPANSION_FLOOR = 16 << 20
"""Below this many bytes a high ratio is harmless: a short run of zeros compresses a thousandfold by right."""

JSON_DEPTH = 256
"""Nesting of one JSON value."""

TEXT_BYTES = 16 << 20
"""A small text file that is read whole: a label file, a list file, a data.yaml."""
