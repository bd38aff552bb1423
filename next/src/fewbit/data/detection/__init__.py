# SPDX-License-Identifier: Apache-2.0
"""What the formats of images with boxes share: objects, samples, repaired copies, and the parts of YOLO."""
