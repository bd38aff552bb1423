# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning: a model and data in, a model that does better on that data out."""
