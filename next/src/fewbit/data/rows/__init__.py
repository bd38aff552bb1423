# SPDX-License-Identifier: Apache-2.0
"""Tables of any format as samples: `table.Table` says where rows come from, `source.row_source` what they mean."""
