# SPDX-License-Identifier: Apache-2.0
"""From samples to a batch, one file a kind of field: tokens, pictures, signals, everything else."""
