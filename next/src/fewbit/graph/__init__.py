# SPDX-License-Identifier: Apache-2.0
"""The neutral graph: what all analysis of a model is written on. Plain data and numpy; no framework's names."""
