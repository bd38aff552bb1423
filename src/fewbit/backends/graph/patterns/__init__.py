# SPDX-License-Identifier: Apache-2.0
"""Functions spelled out in several nodes, recognised from the one node that gives each away.

norms(graph)        (x - mean) / sqrt(variance + ε) · γ + β, from its Sqrt
gelus(graph)        x · ½ · (1 + erf(x / √2)), and the form with tanh, from the Erf or Tanh
attentions(graph)   softmax(q · k · scale + mask) · v, from its Softmax
gates(graph)        x · sigmoid(conv(relu(conv(mean(x))))), from the mean

Each looks a bounded number of nodes around, so all of a graph takes time in proportion to its size.
"""

from fewbit.backends.graph.patterns.attention import Attention, attentions
from fewbit.backends.graph.patterns.gate import gates
from fewbit.backends.graph.patterns.gelu import gelus
from fewbit.backends.graph.patterns.norm import Norm, norms
from fewbit.backends.graph.patterns.pattern import Pattern

__all__ = ["Attention", "Norm", "Pattern", "attentions", "gates", "gelus", "norms"]
