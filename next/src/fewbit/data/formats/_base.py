# SPDX-License-Identifier: Apache-2.0
"""A dataset format is one file here that defines `FORMAT`, a `fewbit.data.types.Format`."""
