# SPDX-License-Identifier: Apache-2.0
"""What is done to samples on their way to a model, one file each."""
