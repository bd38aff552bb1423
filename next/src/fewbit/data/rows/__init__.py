# SPDX-License-Identifier: Apache-2.0
"""Tables of any format as samples: `Table` says where rows come from, `meaning.row_source` what they mean."""
