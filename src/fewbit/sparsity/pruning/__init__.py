# SPDX-License-Identifier: Apache-2.0
"""One-shot pruning: which weights, how many zeros in each, and the plan that the engine carries out."""
