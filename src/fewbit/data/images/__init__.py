# SPDX-License-Identifier: Apache-2.0
"""Image files: what they are, how they decode, how they are found."""
