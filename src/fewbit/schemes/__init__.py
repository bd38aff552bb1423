# SPDX-License-Identifier: Apache-2.0
"""Schemes: what a tensor, a layer and a model become, as immutable data."""
