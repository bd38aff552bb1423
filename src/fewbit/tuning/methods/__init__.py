# SPDX-License-Identifier: Apache-2.0
"""Methods: which parameters learn, one file each."""
