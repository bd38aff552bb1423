# SPDX-License-Identifier: Apache-2.0
"""Python objects as sources: loaders, columns, arrays, sequences, iterables, generators."""
