# SPDX-License-Identifier: Apache-2.0
"""Devices that batches are put on, one file each."""
