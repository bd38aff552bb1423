# SPDX-License-Identifier: Apache-2.0
"""Text as tokens, the same way for calibration and for training: render, tokenize once, mask, truncate, pack."""
