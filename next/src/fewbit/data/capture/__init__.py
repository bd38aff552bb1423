# SPDX-License-Identifier: Apache-2.0
"""What a PyTorch module really receives, as `.npz` samples."""
