# SPDX-License-Identifier: Apache-2.0
"""Algorithms: statistics and schemes in, new weights and scales out, one file each."""
