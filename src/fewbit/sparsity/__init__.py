# SPDX-License-Identifier: Apache-2.0
"""Models with zeros in them, or without what was only zeros: one shot, in training, or carried over to other data."""
