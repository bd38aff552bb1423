# SPDX-License-Identifier: Apache-2.0
"""Observers: statistics of a tensor that are updated batch by batch and merged; one file per member."""
