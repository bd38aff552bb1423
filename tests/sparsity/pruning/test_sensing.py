# SPDX-License-Identifier: Apache-2.0
"""What an error in a layer does to answers, against the divergence itself."""

from __future__ import annotations

import torch
from torch import nn

from fewbit.data.dataset import Dataset
from fewbit.engine.fisher import Curvature, Curvatures
from fewbit.engine.questions import questions
from fewbit.engine.run import view_of
from fewbit.model.points import Role
from fewbit.sparsity.pruning.sensing import fisher_harm


def test_inputs_that_do_not_go_together_give_what_sums_over_columns_do():
    torch.manual_seed(0)
    square, rows, off = torch.rand(6), torch.rand(4), torch.randn(4, 3, 2)
    felt = Curvature(rows, square * float(rows.sum() / square.sum()))
    assert abs(fisher_harm(off, felt, 7 * torch.diag(square)) / felt.harm(off, 0) - 1) < 1e-5


def test_it_is_near_the_divergence_where_inputs_go_together():
    """Errors that the inputs cancel do no harm, which sums over columns cannot know."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 8)).eval()
    inputs = torch.randn(400, 2) @ torch.randn(2, 6) + 0.05 * torch.randn(400, 6)
    view, felt = view_of(model), Curvatures()
    point = view.points(lambda p: p.name == "0.weight" and p.role is Role.weight)[0]
    dataset = Dataset([inputs[n : n + 1] for n in range(400)])
    felt.collect(view, [point], questions(dataset, view.signature(), 1))
    gram, found = inputs.T @ inputs, felt.found["0.weight"]
    cancels = torch.linalg.eigh(gram).eigenvectors[:, :3]  # directions in which inputs hardly go
    for way, much in ((cancels @ cancels.T, 0.5), (torch.eye(6), 0.05)):
        off = much * torch.randn(5, 6) @ way
        with torch.no_grad():
            before = model(inputs).log_softmax(-1)
            after = model[2]((inputs @ (model[0].weight + off).T).relu()).log_softmax(-1)
        divergence = float((before.exp() * (before - after)).sum())
        assert 1 / 3 < fisher_harm(off, found, gram) / divergence < 3
        if much == 0.5:
            assert found.harm(off, 0) > 10 * divergence
