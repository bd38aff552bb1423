# SPDX-License-Identifier: Apache-2.0
"""Backends: one framework each, shown as a view."""
