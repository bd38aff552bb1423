# SPDX-License-Identifier: Apache-2.0
"""What operators do with channels, by name. An operator that is not in here keeps all channels that it touches."""

from __future__ import annotations

from fewbit.sparsity.shrinking.graph_rules_layers import LAYERS
from fewbit.sparsity.shrinking.graph_rules_moving import MOVING
from fewbit.sparsity.shrinking.graph_rules_reshape import RESHAPING
from fewbit.sparsity.shrinking.graph_rules_sides import SIDES
from fewbit.sparsity.shrinking.graph_walk import Rule

RULES: dict[str, Rule] = {**LAYERS, **MOVING, **RESHAPING, **SIDES}
