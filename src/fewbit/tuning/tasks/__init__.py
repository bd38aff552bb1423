# SPDX-License-Identifier: Apache-2.0
"""Tasks: what a model is trained to do, one file each."""
