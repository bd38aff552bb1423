# SPDX-License-Identifier: Apache-2.0
"""The machinery of the eager PyTorch backend: what a module tree holds, how it runs, who feeds whom."""
