# SPDX-License-Identifier: Apache-2.0
"""Arrays in `.npz` and `.npy` files: reading within limits, checking, writing."""
