# SPDX-License-Identifier: Apache-2.0
"""Boxes and polygons on images: label rows, their geometry, and which label file belongs to which image."""
