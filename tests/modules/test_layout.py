# SPDX-License-Identifier: Apache-2.0
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from fewbit.modules.layout import inverse, own_shape, to_ours, to_own


@given(st.permutations(range(4)), st.integers(1, 3))
def test_there_and_back(axes, groups):
    ours = torch.arange(2 * 3 * 4 * 5.0 * groups).reshape(2 * groups, 3, 4, 5)
    axes = tuple(axes)
    own = to_own(ours, axes, groups)
    assert own.shape == own_shape(tuple(ours.shape), axes, groups)
    own_again = own if groups == 1 else own.reshape(own.shape)
    assert torch.equal(to_ours(own_again, axes, groups), ours)


@given(st.permutations(range(5)))
def test_an_inverse_undoes(axes):
    axes = tuple(axes)
    assert tuple(axes[place] for place in inverse(axes)) == tuple(range(5))


def test_a_grouped_transposed_convolution_is_the_gradient_of_a_convolution_with_the_same_weight():
    torch.manual_seed(0)
    own = torch.randn(6, 2, 3)  # in, out / groups, kernel; two groups
    x = torch.randn(1, 6, 7)
    ours = to_ours(own, (1, 0, 2), groups=2)
    assert ours.shape == (4, 3, 3)
    # By hand: output channel o of group g gathers the inputs of its group, each spread by its kernel.
    y = torch.zeros(1, 4, 9)
    for out in range(4):
        for i in range(3):
            channel = (out // 2) * 3 + i
            for k in range(3):
                y[0, out, k : k + 7] += ours[out, i, k] * x[0, channel]
    torch.testing.assert_close(F.conv_transpose1d(x, own, groups=2), y)
