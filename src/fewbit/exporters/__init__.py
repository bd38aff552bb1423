# SPDX-License-Identifier: Apache-2.0
"""Exporters: a quantized model as the files a runtime loads, one format each."""
