"""measure: the shares of E z² that tell examples apart and that come from masks, wherever the examples are."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unitvar


@pytest.mark.parametrize("batch_first", [True, False])
def test_shares_of_a_recurrence_compare_a_step_with_the_same_step_of_the_run_before(batch_first: bool) -> None:
    """The first layer is before all dropout: no noise. Copies of one example, in sequences twice as long: no signal."""
    torch.manual_seed(0)
    model = nn.LSTM(16, 32, num_layers=2, dropout=0.5, batch_first=batch_first)
    one = torch.randn(1, 16, 16)
    copies = one.expand(8, -1, -1) if batch_first else one.expand(8, -1, -1).transpose(0, 1)
    alike = {layer.name: layer for layer in unitvar.measure(model, copies.contiguous())}
    for name in ("weight_ih_l0", "weight_hh_l0"):
        assert alike[name].noise == pytest.approx(0, abs=1e-6), name
        assert alike[name].signal == pytest.approx(0, abs=1e-6), name
    above = alike["weight_ih_l1"]
    assert above.noise > 0.1  # type: ignore[operator]
    assert abs(above.signal) < 0.1  # type: ignore[arg-type]
    others = {layer.name: layer for layer in unitvar.measure(model, torch.randn(*copies.shape))}
    assert others["weight_hh_l0"].noise == pytest.approx(0, abs=1e-6)
    assert others["weight_ih_l0"].signal == pytest.approx(1, abs=0.1)


def _share_of_examples(z: Tensor) -> float:
    """Return 1 - E z z' / E z² over pairs of examples, which come first."""
    z = z.detach()
    total, pairs = z.square().sum(), z.shape[0] * (z.shape[0] - 1)
    return 1 - float((z.sum(0).square().sum() - total) / pairs / (total / z.shape[0]))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", ["self", "self, with weights", "cross", "other keys"])
def test_shares_in_attention_are_of_examples_not_of_positions(kind: str, batch_first: bool) -> None:
    """Attention puts positions first, inside. Each example has a level of its own here, which its positions share."""
    torch.manual_seed(0)
    keys = 8 if kind == "other keys" else 16
    attention = nn.MultiheadAttention(16, 4, kdim=keys, vdim=keys, bias=False, batch_first=batch_first).double()

    def examples(positions: int, width: int) -> Tensor:
        return torch.randn(8, 1, width).double() + 0.5 * torch.randn(8, positions, width).double() + 0.7

    q = examples(12, 16)
    k = q if kind.startswith("self") else examples(9, keys)
    inside = {x: x if batch_first else x.transpose(0, 1) for x in (q, k)}
    batch = inside[q], inside[k], inside[k]
    options = {"need_weights": kind != "self"}
    out = attention(*batch, **options)[0]
    expected = {"out_proj.weight": out if batch_first else out.transpose(0, 1)}
    if kind.startswith("self"):
        assert attention.in_proj_weight is not None
        expected["in_proj_weight"] = q @ attention.in_proj_weight.T
    elif kind == "other keys":
        own = dict(attention.named_parameters())
        expected |= {
            f"{name}_proj_weight": x @ own[f"{name}_proj_weight"].T for name, x in zip("qkv", (q, k, k), strict=True)
        }

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = attention

        def forward(self, *x: Tensor) -> Tensor:
            return self.inner(*x, **options)[0]  # type: ignore[no-any-return]

    found = {layer.name.removeprefix("inner."): layer for layer in unitvar.measure(Attention(), batch, runs=2)}
    for name, z in expected.items():
        assert found[name].noise == pytest.approx(0, abs=1e-12), name
        assert found[name].signal == pytest.approx(_share_of_examples(z), rel=1e-9), name


def test_shares_do_not_depend_on_the_layout() -> None:
    """By default, torch's encoder has positions first. Its positions share a level here, and so do its examples."""
    torch.manual_seed(0)
    x = torch.randn(8, 1, 16) + 0.5 * torch.randn(8, 12, 16) + 0.7
    found = []
    for batch_first in (True, False):
        torch.manual_seed(1)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0, batch_first=batch_first)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        report = unitvar.measure(model, x if batch_first else x.transpose(0, 1).contiguous())
        found.append({layer.name: (layer.signal, layer.noise) for layer in report})
    assert len(found[0]) == 8
    for name, (signal, noise) in found[0].items():
        assert signal is not None, name
        assert signal > 0.3, name
        assert found[1][name] == pytest.approx((signal, noise), abs=1e-5), name


def test_there_are_no_shares_where_examples_alternate_with_positions() -> None:
    class Flattened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoderLayer(16, 4, 32)
            self.head = nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.encoder(x).flatten(0, 1))  # type: ignore[no-any-return]

    report = unitvar.measure(Flattened(), torch.randn(12, 8, 16))
    assert report["encoder.linear2.weight"].signal is not None
    assert report["head.weight"].signal is None


def test_rows_that_were_joined_are_examples() -> None:
    """Both halves of a pair go through one network, as in contrastive learning. Twice one half is half of the pairs."""

    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32))

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.body(torch.cat((a, b)))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model = Siamese()
    a, b = torch.randn(2, 32, 16)
    with torch.no_grad():
        z = model.body[0](torch.cat((a, b)))
    assert unitvar.measure(model, (a, b))["body.0.weight"].signal == pytest.approx(_share_of_examples(z), rel=1e-5)


@pytest.mark.parametrize(
    "last", [nn.Linear(16, 4), nn.Sequential(nn.ReLU(), nn.Linear(16, 4))], ids=["at once", "ReLU"]
)
def test_a_view_of_the_next_layer_hides_no_examples(last: nn.Module) -> None:
    """Positions first: before a linear layer, torch makes rows of positions and examples."""

    class Attended(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.last = nn.MultiheadAttention(16, 4), last

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.attention(x, x, x, need_weights=False)[0])  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model, x = Attended().double(), torch.randn(1, 8, 16).double() + torch.randn(12, 8, 16).double()
    with torch.no_grad():
        z = model.attention(x, x, x)[0].transpose(0, 1)
    found = unitvar.measure(model, x)
    assert found["attention.out_proj.weight"].signal == pytest.approx(_share_of_examples(z), rel=1e-9)


def test_attention_with_a_forward_of_its_own_may_have_examples_first() -> None:
    class Own(nn.MultiheadAttention):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            q, k, v = F.linear(x, self.in_proj_weight).chunk(3, -1)  # type: ignore[arg-type]
            return self.out_proj(F.scaled_dot_product_attention(q, k, v))

    torch.manual_seed(0)
    model, x = Own(16, 1).double(), torch.randn(8, 12, 16).double() + torch.randn(8, 1, 16).double() + 0.5
    with torch.no_grad():
        z = F.linear(x, model.in_proj_weight)  # type: ignore[arg-type]
    assert unitvar.measure(model, x)["in_proj_weight"].signal == pytest.approx(_share_of_examples(z), rel=1e-9)


def test_shares_are_of_all_units_where_a_pre_activation_is_too_large_to_keep() -> None:
    """Every other unit tells examples apart. Every 64th number, of 512 units, would be of those alone."""
    torch.manual_seed(0)
    layer = nn.Linear(64, 512)
    x = torch.randn(128, 64, 32)
    x = torch.cat([x, torch.ones_like(x)], 2)
    with torch.no_grad():
        layer.weight[::2, 32:] = 0
        layer.weight[1::2, :32] = 0
        layer.weight[1::2, 32:].abs_()
        z = x @ layer.weight.T
    expected = (z - z.mean(0)).square().mean() / z.square().mean()
    assert expected < 0.5
    found = unitvar.measure(layer, x, runs=2)["weight"]
    assert found.signal == pytest.approx(expected.item(), rel=0.1)


def test_a_loop_of_cells_is_compared_at_its_first_steps_only() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(8, 16)

        def forward(self, x: Tensor) -> Tensor:
            h = x.new_zeros(len(x), 16)
            for step in x.unbind(1):
                h = self.cell(step, h)
            return h

    report = unitvar.measure(Loop(), torch.randn(4, 70, 8), runs=2)
    compared = [layer.signal is not None for layer in report if layer.name == "cell.weight_ih"]
    assert compared == [True] * 64 + [False] * 6
