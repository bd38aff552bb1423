# SPDX-License-Identifier: Apache-2.0
"""Say where the objects in a picture are, and of which class: pictures and label files as YOLO has them.

Pictures have the size, mean and deviation that the model's own files say, or `image_size`, `image_mean`, `image_std`;
boxes are shares of the picture, and stay.
"""

from __future__ import annotations

KIND = "pictures"
TASK = "object_detection"
METRIC = "map"
METRICS = {"map": "max", "map_50": "max", "recall": "max", "recall_50": "max", "loss": "min"}
WORDS = {"map_0.5": "map_50", "map50": "map_50", "map@0.5": "map_50", "map_0.5:0.95": "map", "map@0.5:0.95": "map"}
ALIASES = ("detection", "od", "yolo")
FORMATS = ("yolo", "npz", "huggingface")
STEPS = ("rescaling",)
