# SPDX-License-Identifier: Apache-2.0
"""Images: decoding, checking, preprocessing. Every format that holds images reads them through here."""

IMAGE_OPTIONS = ("preprocess", "image_size", "resize", "mean", "std", "layout")
"""The image options of the command line and of Python; `--transform` replaces them all."""
TEXT_SETTINGS = ("max_length", "pack", "text_column", "label_column")
"""What `preprocessing.json` holds for texts, by option name."""
PREPROCESSING_VERSION = 1
