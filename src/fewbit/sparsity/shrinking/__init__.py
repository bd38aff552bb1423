# SPDX-License-Identifier: Apache-2.0
"""Channels and heads taken out of a model for good."""
