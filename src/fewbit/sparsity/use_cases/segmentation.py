# SPDX-License-Identifier: Apache-2.0
"""Say of each pixel of a picture of which class it is: outlines in label files as YOLO has them, or masks.

Pictures have the size, mean and deviation that the model's own files say, or `image_size`, `image_mean`, `image_std`;
masks get the same size.
"""

from __future__ import annotations

KIND = "pictures"
TASK = "segmentation"
METRIC = "mean_iou"
METRICS = {"mean_iou": "max", "pixel_accuracy": "max", "loss": "min"}
WORDS = {"iou": "mean_iou", "miou": "mean_iou", "accuracy": "pixel_accuracy"}
ALIASES = ("image_segmentation", "semantic_segmentation", "seg")
FORMATS = ("yolo", "npz", "huggingface")
STEPS = ("rescaling",)
