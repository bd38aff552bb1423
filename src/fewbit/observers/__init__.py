# SPDX-License-Identifier: Apache-2.0
"""Observers: mergeable running statistics of one point, one file each."""
