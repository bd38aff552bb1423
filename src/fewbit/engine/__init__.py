# SPDX-License-Identifier: Apache-2.0
"""The way of a run: plan, collect, solve, apply."""
