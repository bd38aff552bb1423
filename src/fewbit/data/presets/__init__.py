# SPDX-License-Identifier: Apache-2.0
"""Datasets by name: where they lie, and what their rows mean, one file each."""
