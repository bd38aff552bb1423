# SPDX-License-Identifier: Apache-2.0
"""Checkpoint formats of language models, read and written as streams of tensors."""
