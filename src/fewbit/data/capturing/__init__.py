# SPDX-License-Identifier: Apache-2.0
"""The parts of `capture`: what a module is called with, taken apart into samples and kept in a folder."""
