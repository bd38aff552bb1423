# SPDX-License-Identifier: Apache-2.0
"""The steps of a recipe, one file each."""
