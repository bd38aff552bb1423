# SPDX-License-Identifier: Apache-2.0
"""The parts of a deployment folder, one file each."""
