# SPDX-License-Identifier: Apache-2.0
"""What models are for, one file each: data, preprocessing, metric."""
