# SPDX-License-Identifier: Apache-2.0
"""Array files: `.npy` headers, `.npz` archives, and whether an array fits a model's input."""
