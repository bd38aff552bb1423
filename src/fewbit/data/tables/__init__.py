# SPDX-License-Identifier: Apache-2.0
"""Row files: encodings, JSON, CSV, Parquet, offsets, schemas."""
