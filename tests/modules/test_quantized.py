# SPDX-License-Identifier: Apache-2.0
import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.quantized import clear_weight, float_weight, get_weight, is_quantized, make_quantized, set_weight
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from tiny_models import codes, rounded


class Scaled(nn.Linear):
    """A Linear with a forward and a constructor of its own."""

    def __init__(self, factor):
        super().__init__(6, 4)
        self.factor = factor

    def forward(self, input):
        return super().forward(input) * self.factor


LAYERS = {
    "linear": (lambda: nn.Linear(6, 4), (3, 6), None),
    "subclass": (lambda: Scaled(2.0), (3, 6), None),
    "conv1d": (lambda: nn.Conv1d(6, 4, 3, groups=2), (2, 6, 5), None),
    "conv2d": (lambda: nn.Conv2d(6, 4, 3), (2, 6, 5, 5), None),
    "conv3d": (lambda: nn.Conv3d(2, 4, 2), (2, 2, 3, 3, 3), None),
    "transposed": (lambda: nn.ConvTranspose2d(6, 4, 3), (2, 6, 5, 5), (1, 0, 2, 3)),
}


@pytest.fixture(params=LAYERS)
def layer(request):
    make, shape, axes = LAYERS[request.param]
    torch.manual_seed(0)
    return make(), torch.randn(shape), axes


def quantize(module, axes=None):
    weight = module.weight.detach() if axes is None else module.weight.detach().permute(axes)
    set_weight(module, "weight", codes(weight), axes)


def test_the_layer_computes_what_its_class_computes_with_rounded_weights(layer):
    module, x, axes = layer
    float_twin = copy.deepcopy(module)
    float_twin.weight.data = rounded(module.weight, out=0 if axes is None else 1)
    quantize(module, axes)
    torch.testing.assert_close(module(x), float_twin(x))
    torch.testing.assert_close(module(input=x), float_twin(x))
    assert isinstance(module, type(float_twin)) and is_quantized(module) and not is_quantized(float_twin)
    assert "weight" not in dict(module.named_parameters()) and module.weight.shape == float_twin.weight.shape


def test_copies_pickles_and_state_dicts_are_the_same_to_the_bit(layer):
    module, x, axes = layer
    fresh = copy.deepcopy(module)
    quantize(module, axes)
    out = module(x)
    for twin in (copy.deepcopy(module), copy.copy(module), _through_pickle(module), _through_torch_save(module)):
        assert torch.equal(twin(x), out) and type(twin) is type(module)
    fresh.weight.data.zero_()
    quantize(fresh, axes)
    fresh.load_state_dict(module.state_dict())
    assert torch.equal(fresh(x), out)


def _through_pickle(module):
    return pickle.loads(pickle.dumps(module))


def _through_torch_save(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_changing_a_copy_leaves_the_original():
    module = nn.Linear(6, 4)
    quantize(module)
    twin = copy.deepcopy(module)
    twin.weight_packed.zero_()
    assert get_weight(module, "weight").packed.any()


@pytest.mark.parametrize("cast", [lambda m: m.half(), lambda m: m.bfloat16(), lambda m: m.to(torch.float64)])
def test_a_cast_changes_what_the_codes_stand_for_but_not_the_codes(cast):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    quantize(module[0])
    make_quantized(module[0]).input_quantizer = ActivationQuantizer(Grid(Dtype.int8))
    before = get_weight(module[0], "weight")
    dtype = cast(module)[1].weight.dtype
    after = get_weight(module[0], "weight")
    assert torch.equal(before.packed, after.packed) and torch.equal(before.scale, after.scale)
    assert after.scale.dtype == torch.float32
    assert module[0].weight.dtype == module[0].bias.dtype == dtype
    torch.testing.assert_close(module[0].weight, before.dequantize(dtype))
    assert module(torch.randn(3, 6).to(dtype)).dtype == dtype


def test_codes_in_fp8_are_not_cast_either():
    from fewbit.numerics.qparams import from_range
    from fewbit.numerics.qtensor import QTensor

    module = nn.Linear(6, 4)
    grid = Grid(Dtype.fp8_e4m3)
    low, high = module.weight.detach().aminmax()
    qparams = from_range(low.reshape(1, 1), high.reshape(1, 1), grid, (4, 6))
    set_weight(module, "weight", QTensor.encode(module.weight.detach(), qparams))
    values = module.weight.clone()
    module.half().float()
    assert module.weight_packed.dtype == torch.float8_e4m3fn
    assert torch.equal(module.weight, values)


def test_a_fixed_quantizer_keeps_its_scales_in_a_half_model():
    from fewbit.numerics.qparams import QParams

    grid = Grid(Dtype.int8)
    quantizer = ActivationQuantizer(grid, fixed=QParams(grid, (1,), torch.tensor([0.1])))
    x = torch.tensor([[0.26, -0.5]])
    out = quantizer(x)
    quantizer.half()
    assert quantizer.scale.dtype == torch.float32 and quantizer.scale.item() == pytest.approx(0.1)
    torch.testing.assert_close(quantizer(x.half()), out.half())


def test_a_meta_model_keeps_its_shape():
    module = nn.Linear(6, 4)
    quantize(module)
    module.to("meta")
    assert module.weight_packed.is_meta and module.weight.shape == (4, 6)


def test_shared_codes_are_stored_once_and_stay_shared_when_the_model_moves_or_is_copied():
    model = nn.ModuleList([nn.Linear(6, 4), nn.Linear(6, 4)])
    held = codes(model[0].weight)
    for module in model:
        set_weight(module, "weight", held)
    for twin in (model, model.half(), copy.deepcopy(model), _through_pickle(model)):
        assert twin[0].weight_packed is twin[1].weight_packed
        assert twin[0].weight_scale is twin[1].weight_scale
    state = model.state_dict()
    assert state["0.weight_packed"].data_ptr() == state["1.weight_packed"].data_ptr()


def test_an_embedding_and_a_bag_look_up_rounded_rows():
    torch.manual_seed(0)
    ids = torch.tensor([[1, 3], [0, 2]])
    for module in (nn.Embedding(5, 4), nn.EmbeddingBag(5, 4)):
        table = rounded(module.weight)
        quantize(module)
        expected = table[ids] if isinstance(module, nn.Embedding) else table[ids].mean(1)
        torch.testing.assert_close(module(ids), expected)


def test_a_bias_can_be_codes_too():
    module = nn.Linear(6, 4)
    x, weight = torch.randn(2, 6), module.weight.detach()
    bias = rounded(module.bias)
    set_weight(module, "bias", codes(module.bias))
    torch.testing.assert_close(module(x), F.linear(x, weight, bias))


def test_whoever_reads_the_weight_without_calling_the_layer_gets_floats():
    module = nn.Linear(6, 4)
    expected = rounded(module.weight)
    quantize(module)
    x = torch.randn(2, 6)
    torch.testing.assert_close(F.linear(x, module.weight), x @ expected.T)
    assert module.weight.dtype == torch.float32 and module.weight.device == x.device
    torch.testing.assert_close(float_weight(module, "weight"), expected)


def test_codes_can_be_replaced_and_taken_back():
    module = nn.Linear(6, 4)
    x, original = torch.randn(2, 6), copy.deepcopy(module)
    quantize(module)
    other = torch.randn(4, 6)
    set_weight(module, "weight", codes(other))
    torch.testing.assert_close(module.weight, rounded(other))
    clear_weight(module, "weight", nn.Parameter(original.weight.detach()))
    assert torch.equal(module(x), original(x))
    assert set(module.state_dict()) == {"weight", "bias"}


def test_quantizers_of_input_and_output_lie_around_the_forward():
    torch.manual_seed(0)
    module = nn.Linear(6, 4)
    x, weight, bias = torch.randn(3, 6), rounded(module.weight), module.bias.detach()
    quantize(module)
    layer = make_quantized(module)
    layer.input_quantizer = ActivationQuantizer(Grid(Dtype.int4))
    layer.output_quantizer = ActivationQuantizer(Grid(Dtype.int4))

    def int4(t):
        scale = t.abs().max() / 7.5
        return (t / scale).round().clamp(-8, 7) * scale

    torch.testing.assert_close(module(x), int4(F.linear(int4(x), weight, bias)))
    torch.testing.assert_close(module(input=x), module(x))


def test_a_first_argument_given_by_name_out_of_order_is_the_one_that_is_quantized():
    class Gate(nn.Linear):
        def forward(self, x, scale):
            return super().forward(x) * scale

    module = make_quantized(Gate(2, 2))
    module.input_quantizer = ActivationQuantizer(Grid(Dtype.int2))
    x = torch.tensor([[1.0, 0.1]])
    assert torch.equal(module(scale=torch.tensor(0.3), x=x), module(x, torch.tensor(0.3)))


@pytest.mark.parametrize("biased", [True, False])
def test_export_of_a_layer_alone(biased):
    module = nn.Linear(6, 4, bias=biased)
    quantize(module)
    if biased:
        set_weight(module, "bias", codes(module.bias))
    x = torch.randn(3, 6)
    program = torch.export.export(module, (x,))
    torch.testing.assert_close(program.module()(x), module(x))


def test_export_of_a_model_with_a_batch_of_any_size():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 2)).eval()
    quantize(model[0])
    quantize(model[3])
    make_quantized(model[3]).input_quantizer = ActivationQuantizer(Grid(Dtype.int8))
    x = torch.randn(3, 3, 5, 5)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    other = torch.randn(5, 3, 5, 5)
    torch.testing.assert_close(program.module()(other), model(other))


@pytest.mark.slow
def test_compile():
    module = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    quantize(module[0])
    quantize(module[2])
    make_quantized(module[2]).input_quantizer = ActivationQuantizer(Grid(Dtype.int8))
    x = torch.randn(3, 6)
    torch.testing.assert_close(torch.compile(module, fullgraph=True)(x), module(x))


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_a_quantizer_behind_a_layer_that_learns_can_be_traced(dynamic):
    quantizer = ActivationQuantizer(Grid(Dtype.int8))
    x = torch.randn(3, 6)
    fixed = None if dynamic else quantizer.qparams(x).reshape((), ())
    model = nn.Sequential(nn.Linear(6, 6), ActivationQuantizer(Grid(Dtype.int8), fixed=fixed))
    assert torch.equal(torch.jit.trace(model, x)(x), model(x))
