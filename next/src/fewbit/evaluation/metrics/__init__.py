# SPDX-License-Identifier: Apache-2.0
"""Quality metrics: one file per metric."""
