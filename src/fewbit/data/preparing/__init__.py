# SPDX-License-Identifier: Apache-2.0
"""From a configuration to samples: where rows come from, how they are split, and how steps are put one on another."""
