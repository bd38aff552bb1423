# SPDX-License-Identifier: Apache-2.0
"""Say of which class a picture is: folders of pictures a class, as PyTorch's ImageFolder reads them.

Pictures have the size, mean and deviation that the model's own files say, or `image_size`, `image_mean`, `image_std`.
"""

from __future__ import annotations

KIND = "pictures"
TASK = "image_classification"
METRIC = "accuracy"
METRICS = {
    "accuracy": "max", "accuracy_top_5": "max", "precision": "max", "recall": "max", "f1": "max", "loss": "min",
}  # fmt: skip
WORDS = {"acc": "accuracy", "top1": "accuracy", "top_1": "accuracy", "top5": "accuracy_top_5", "f1_score": "f1"}
ALIASES = ("ic", "classification")
FORMATS = ("image_folder", "npz", "huggingface")
STEPS = ("rescaling",)
