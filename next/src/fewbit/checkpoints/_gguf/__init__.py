# SPDX-License-Identifier: Apache-2.0
"""GGUF in parts: block types and the search for them, architectures and tokenizers of llama.cpp, reading files."""
