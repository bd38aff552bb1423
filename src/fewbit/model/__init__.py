# SPDX-License-Identifier: Apache-2.0
"""What every backend shows of a model: points, neutral operations, structure, and the verbs of the view."""
