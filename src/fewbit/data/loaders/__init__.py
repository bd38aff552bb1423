# SPDX-License-Identifier: Apache-2.0
"""What a loader is made of: fetching a batch, who fetches it, how it gets to the device."""
