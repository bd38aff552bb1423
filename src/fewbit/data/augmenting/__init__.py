# SPDX-License-Identifier: Apache-2.0
"""Random changes that keep the meaning of a sample: text, and pictures with what is marked in them."""
