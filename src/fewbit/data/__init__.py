# SPDX-License-Identifier: Apache-2.0
"""The data layer: whatever the user has, as samples; whatever is wrong with it, as findings."""
