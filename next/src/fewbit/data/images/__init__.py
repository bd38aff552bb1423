# SPDX-License-Identifier: Apache-2.0
"""Images: decoding, checking, preprocessing. Every format that holds images reads them through here."""
