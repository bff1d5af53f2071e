"""LSUV and the usual initialisations, against what their papers say."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unitvar import dropout_off
from unitvar_reproduction.networks.attention import GPT, Attention, Encoder
from unitvar_reproduction.networks.convolution import ResNet, UNet, plain_cnn
from unitvar_reproduction.networks.fill import FILLS, OPTIONS, fill_
from unitvar_reproduction.networks.lsuv import lsuv_
from unitvar_reproduction.networks.recurrent import CharacterRNN
from unitvar_reproduction.networks.usual import USUAL, matrices

TOKENS = torch.randint(11, (16, 8), generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def outputs(model: nn.Module, example: Tensor) -> dict[str, Tensor]:
    """Run a model with dropout off; return what each dense layer and convolution puts out."""
    found: dict[str, Tensor] = {}
    kinds = nn.Linear, nn.Conv2d, nn.ConvTranspose2d, nn.MultiheadAttention
    named = [(name, m) for name, m in model.named_modules() if isinstance(m, kinds)]

    def keep(name: str, out: Any) -> None:
        found[name] = out[0] if isinstance(out, tuple) else out

    handles = [m.register_forward_hook(lambda _, __, out, name=name: keep(name, out)) for name, m in named]
    with dropout_off(model), torch.no_grad():
        model(example)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize(
    ("model", "example"),
    [
        (plain_cnn(4, "relu", 0.5), IMAGES),
        (UNet(4, 0.5), IMAGES),
        (ResNet(4, 1, 0.5), IMAGES),
        (GPT(11, 8, 16, 2, 0.5, tied=False), TOKENS),
        (Encoder(11, 8, 16, 2, 0.5), TOKENS),
    ],
    ids=["cnn", "unet", "resnet", "gpt", "encoder"],
)
def test_lsuv_gives_every_layer_unit_variance_with_dropout_off(model: nn.Module, example: Tensor) -> None:
    torch.manual_seed(0)
    lsuv_(model.train(), example)
    found = outputs(model, example)
    assert len(found) > 4
    for name, out in found.items():
        assert out.std().item() == pytest.approx(1, rel=1e-3), name


def test_lsuv_keeps_rows_orthogonal_and_does_not_scale_a_tied_embedding() -> None:
    model = GPT(11, 8, 16, 2, 0.5, tied=True)
    lsuv_(model, TOKENS)
    assert model.training
    assert model.head.weight is model.tokens.weight
    rows = model.tokens.weight @ model.tokens.weight.T
    assert torch.allclose(rows, torch.eye(11), atol=1e-5)  # orthonormal as any weight, and not scaled
    gram = model.blocks[0].mlp.end.weight @ model.blocks[0].mlp.end.weight.T  # type: ignore[union-attr,operator]
    assert torch.allclose(gram, gram[0, 0] * torch.eye(16), atol=1e-5)


def test_lsuv_scales_queries_keys_and_values_each_by_its_own() -> None:
    model = Encoder(11, 8, 16, 1, 0.0)
    lsuv_(model, TOKENS)
    attention = model.blocks[0].self_attn
    assert isinstance(attention, nn.MultiheadAttention)
    with torch.no_grad():
        x = model.norm(model.tokens(TOKENS) + model.places(torch.arange(8)))
        for part in attention.in_proj_weight.chunk(3):
            assert (x @ part.T).std().item() == pytest.approx(1, rel=1e-3)


def test_gpt2_shrinks_the_ends_of_branches_by_the_root_of_their_number() -> None:
    torch.manual_seed(0)
    model = GPT(65, 8, 64, 3, 0.1, tied=True)
    USUAL["gpt2"](model)
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            expected = 0.02 / (math.sqrt(6) if name.endswith("end.weight") else 1)
            # The sample standard deviation of n normals has a relative standard error of 1 / sqrt(2 n).
            assert weight.std().item() == pytest.approx(expected, rel=5 / math.sqrt(2 * weight.numel())), name
        elif name.endswith("bias"):
            assert not weight.any()


def test_keras_recurrent_matrices_are_orthogonal_and_forget_gates_open() -> None:
    model = CharacterRNN(11, 16, "lstm", 0.2)
    USUAL["keras"](model)
    for gate in model.cell.weight_hh_l1.chunk(4):  # type: ignore[operator]
        assert torch.allclose(gate @ gate.T, torch.eye(16), atol=1e-5)
    assert [gate.unique().tolist() for gate in model.cell.bias_ih_l0.chunk(4)] == [[0], [1], [0], [0]]  # type: ignore[operator]
    assert not model.cell.bias_hh_l0.any()  # type: ignore[operator]


def test_he_has_two_over_fan_in_for_every_matrix_of_packed_weights() -> None:
    torch.manual_seed(0)
    for model in (Encoder(11, 8, 64, 1, 0.1), CharacterRNN(11, 64, "gru", 0.2), nn.Sequential(Attention(64, 4, 0.1))):
        USUAL["he"](model)
        for _, matrix in matrices(model):
            error = 5 / math.sqrt(2 * matrix.numel())
            assert matrix.std().item() == pytest.approx(math.sqrt(2 / matrix[0].numel()), rel=error)


def test_torchs_default_is_left_as_it_was_drawn() -> None:
    model = UNet(4, 0.5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fill_(model, "default", IMAGES)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_unknown_name_is_named() -> None:
    assert {"default", "lsuv", "he", "xavier", "gpt2"} <= set(FILLS)
    assert OPTIONS["unit"]["residual"] == "unit"
    with pytest.raises(ValueError, match=r"init='kaiming' is not one of 'default', 'he'"):
        fill_(nn.Linear(2, 2), "kaiming", torch.ones(1, 2))
