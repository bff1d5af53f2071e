"""mode="backward" and mode="mean": gradients are one wherever a scale can make them so.

Which scale decides what? Let g be the gradient at a weight's output z, its pre-activation. The default loss of measure
gives E g² = 1 at the output of the network.

- *No norm follows the weight.* Its scale multiplies the gradient that leaves it towards its input, and so E g² at the
  outputs of the weights before it. The network's last weight decides nothing at its own output: there, the loss does.
- *A norm follows the weight.* The norm undoes the scale on the way forward and divides the gradient by it on the way
  back. What leaves the weight towards its input does not depend on its scale. E g² at its *own* output falls as 1/s².

So in a chain, with norms or without, there is a scale for each E g², and all of them can be one. In a ResNet, whose
convolutions are all followed by a norm, all of them can be one, too.

- *A stream x + b(x) whose branches end without a norm.* The stream's gradient is what comes through the skip plus what
  the branch adds. It never falls on the way back, so no scales make it one at two places unless the branches send
  nothing. At the end of a branch, and at the weight before the first sum, E g² is that of the stream: not decidable.
  Inside a branch the branch's last weight decides it, and it must be one. If each branch adds at most one, the stream's
  gradient grows by at most one a branch. It doubled before: 259 is 2⁸ and some noise.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unitvar
from tests.composition.spelling import assert_gradients_as_predicted, assert_ones, drawn, white

# Branch ends scaled by 1/√n would hold E g² at 1/n inside a branch: the law is of unit branches.
UNIT = {"residual": "unit"} if "residual" in inspect.signature(unitvar.plan).parameters else {}


def gradients(model: nn.Module, x: Tensor) -> dict[str, float]:
    """Return weight name → E g² at its output, for a loss that sends random signs, by hooks on the modules."""
    found: dict[str, float] = {}

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            output.register_hook(lambda g: found.__setitem__(name, float(g.double().square().mean())))

        return hook

    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    handles = [m.register_forward_hook(watch(f"{n}.weight")) for n, m in layers]
    output = model.train()(x)
    (output * (torch.randint(2, output.shape) * 2.0 - 1)).sum().backward()
    for handle in handles:
        handle.remove()
    return found


def gathered(
    build: Callable[[], nn.Module], sample: Callable[[], Tensor], draws: int, **options: Any
) -> dict[str, Tensor]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    for model, x, _ in drawn(build, sample, draws, **options):
        for name, value in gradients(model, x).items():
            found[name].append(value)
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}


def mlp(widths: list[int], activation: type[nn.Module], dropout: float = 0.0, norm: bool = False) -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b, bias=False), *([nn.BatchNorm1d(b)] if norm else []), activation()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers, nn.Linear(widths[-1], 64))


CHAINS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "plain": (lambda: mlp([128] * 7, nn.ReLU), (64, 128)),
    "plain, dropout": (lambda: mlp([128] * 5, nn.ReLU, 0.3), (64, 128)),
    "tanh": (lambda: mlp([128] * 5, nn.Tanh), (64, 128)),
    "gelu": (lambda: mlp([128] * 5, nn.GELU), (64, 128)),
    "widening": (lambda: mlp([64, 96, 160, 256], nn.ReLU), (64, 64)),
    "widening tanh": (lambda: mlp([64, 96, 160, 256], nn.Tanh), (64, 64)),
    "narrowing gelu": (lambda: mlp([256, 160, 96], nn.GELU), (64, 256)),
    "batch norm": (lambda: mlp([128] * 9, nn.ReLU, norm=True), (128, 128)),
    "batch norm, dropout": (lambda: mlp([128] * 5, nn.ReLU, 0.3, norm=True), (128, 128)),
    "batch norm, widening": (lambda: mlp([64, 96, 160, 256], nn.ReLU, norm=True), (128, 64)),
    "batch norm at the end": (lambda: nn.Sequential(*list(mlp([128] * 9, nn.ReLU, norm=True))[:-1]), (128, 128)),
    "layer norm": (
        lambda: nn.Sequential(
            *(m for _ in range(5) for m in (nn.Linear(128, 128), nn.LayerNorm(128), nn.ReLU())), nn.Linear(128, 64)
        ),
        (64, 128),
    ),
    "strided": (
        lambda: nn.Sequential(
            nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 48, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(48, 64, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 1),
        ),
        (8, 32, 16, 16),
    ),
    "pooled": (
        lambda: nn.Sequential(
            nn.Conv2d(32, 48, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(48, 64, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 64),
        ),
        (8, 32, 16, 16),
    ),
    "strided, batch norm": (
        lambda: nn.Sequential(
            nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 48, 3, stride=2, padding=1),
            nn.BatchNorm2d(48), nn.ReLU(), nn.Conv2d(48, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Conv2d(64, 64, 1),
        ),
        (16, 32, 16, 16),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CHAINS)
def test_in_a_chain_every_gradient_is_one(kind: str) -> None:
    build, shape = CHAINS[kind]
    found = gathered(build, white(*shape), 8, mode="backward")
    if "at the end" not in kind:  # there, the loss decides
        assert float(found[max(found, key=_index)].mean()) == 1.0
    assert_ones(found, tolerance=0.06)


def _index(name: str) -> int:
    return int(name.partition(".")[0])


class Block(nn.Module):
    """A residual block of a ResNet: every convolution is followed by a batch norm."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.norm2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.skip = nn.Identity()
        if a != b or stride > 1:
            self.skip = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (self.skip(x) + y).relu()


def resnet() -> nn.Module:
    stem = nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()
    blocks = Block(32, 32, 1), Block(32, 48, 2), Block(48, 48, 1), Block(48, 64, 2)
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 64))


def test_in_a_resnet_with_batch_norms_every_gradient_is_one() -> None:
    """Each convolution's own scale decides E g² at its output, for a norm follows it. 10 % for 4 x 4 positions."""
    assert_ones(gathered(resnet, white(16, 16, 16, 16), 8, mode="backward", **UNIT), tolerance=0.1)


class Stream(nn.Module):
    """A residual stream: a first weight, blocks of two weights around a ReLU, a last weight."""

    def __init__(self, blocks: int, make: Callable[[], nn.Module], norm: Callable[[], nn.Module] = nn.Identity) -> None:
        super().__init__()
        self.first, self.last = make(), make()
        self.up, self.down = (nn.ModuleList(make() for _ in range(blocks)) for _ in range(2))
        self.norms = nn.ModuleList(norm() for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for up, down, norm in zip(self.up, self.down, self.norms, strict=True):
            x = x + down(up(norm(x)).relu())
        return self.last(x)


STREAMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: Stream(8, lambda: nn.Linear(128, 128)), (64, 128)),
    "convolutions": (lambda: Stream(3, lambda: nn.Conv2d(48, 48, 3, padding=1)), (8, 48, 8, 8)),
    "layer norm": (lambda: Stream(4, lambda: nn.Linear(128, 128), lambda: nn.LayerNorm(128)), (64, 128)),
    "batch norm": (lambda: Stream(4, lambda: nn.Linear(128, 128), lambda: nn.BatchNorm1d(128)), (128, 128)),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_inside_the_branches_of_a_stream_every_gradient_is_one(kind: str) -> None:
    build, shape = STREAMS[kind]
    found = gathered(build, white(*shape), 8, mode="backward", **UNIT)
    assert_ones({n: v for n, v in found.items() if n.startswith("up") or n == "last.weight"}, tolerance=0.1)


@pytest.mark.parametrize(("kind", "blocks"), [("linear", 8), ("convolutions", 3)])
def test_the_gradient_of_a_stream_grows_by_at_most_one_a_branch(kind: str, blocks: int) -> None:
    """124 to 259 at the first of eight blocks before: it doubled at every one."""
    build, shape = STREAMS[kind]
    found = gathered(build, white(*shape), 5, mode="backward")
    first = found["first.weight"]
    assert float(first.mean()) <= (blocks + 1) * 1.1 + 5 * float(first.std()) / len(first) ** 0.5
    assert float(found["down.0.weight"].mean()) <= float(first.mean()) * 1.05
    assert float(first.mean()) >= 0.9


@pytest.mark.parametrize("mode", ["backward", "mean"])
@pytest.mark.parametrize("kind", ["plain, dropout", "widening tanh", "batch norm, widening", "strided"])
def test_measure_predicts_what_it_finds_in_a_chain(kind: str, mode: str) -> None:
    build, shape = CHAINS[kind]
    assert_gradients_as_predicted(build, white(*shape), draws=8, mode=mode)


@pytest.mark.parametrize("mode", ["backward", "mean"])
@pytest.mark.parametrize("kind", ["convolutions", "layer norm"])
def test_measure_predicts_what_it_finds_in_a_stream(kind: str, mode: str) -> None:
    build, shape = STREAMS[kind]
    assert_gradients_as_predicted(build, white(*shape), draws=8, mode=mode, tolerance=0.08)


@pytest.mark.parametrize("widths", [[64, 128, 32, 96], [32, 32, 32, 32], [200, 40, 40]])
def test_the_mean_of_both_modes_is_harmonic(widths: list[int]) -> None:
    """DESIGN §2, for ReLUs, whose factors do not depend on what flows: s² = 2 / (1/s_f² + 1/s_b²)."""
    model, x = mlp(widths, nn.ReLU, 0.2), torch.zeros(2, widths[0])
    forward, backward, both = (unitvar.plan(model, x, mode=mode) for mode in ("forward", "backward", "mean"))
    expected = [2 / (a.scale**-2 + b.scale**-2) for a, b in zip(forward, backward, strict=True)]
    assert [layer.scale**2 for layer in both] == pytest.approx(expected, rel=1e-3)


def test_in_the_middle_of_both_modes_neither_signal_nor_gradient_is_lost() -> None:
    """Where widths change, forward scales lose gradients and backward scales signals; the mean bounds both."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for model, x, _ in drawn(lambda: mlp([64, 128, 64, 128, 64, 128], nn.ReLU), white(64, 64), 8, mode="mean"):
        for layer in unitvar.measure(model, x, runs=1):
            found["signal"].append(layer.variance or 0.0)
            found["gradient"].append(layer.gradient or 0.0)
    assert all(0.1 < value < 10 for values in found.values() for value in values)


class Recurrent(nn.Module):
    """Dense layers, a recurrence, a head; without the recurrence, the same dense layers."""

    def __init__(self, layer: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(48, 64), nn.Linear(64, 32)
        self.head = nn.Linear(32, 8)
        self.cell = getattr(nn, layer)(32, 32) if layer.endswith("Cell") else None
        self.layer = None if self.cell or layer == "none" else getattr(nn, layer)(32, 32, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x).relu())
        if self.layer is not None:
            x = self.layer(x)[0]
        if self.cell is not None:
            state, states = None, []
            for step in x.unbind(1):
                state = self.cell(step, state)
                states.append(state[0] if isinstance(state, tuple) else state)
            x = torch.stack(states, 1)
        return self.head(x)


@pytest.mark.parametrize("layer", ["LSTM", "GRU", "RNN", "LSTMCell", "GRUCell"])
@pytest.mark.parametrize("mode", ["backward", "mean"])
def test_weights_before_a_recurrence_do_not_make_up_for_its_gates(layer: str, mode: str) -> None:
    """Little gradient comes back through gates; weights that made it one would saturate them (rows of length 13)."""
    x = white(16, 12, 48)()
    plans = {name: unitvar.plan(Recurrent(name), x, mode=mode) for name in (layer, "none")}
    for weight in ("first.weight", "second.weight"):
        assert plans[layer][weight].scale == pytest.approx(plans["none"][weight].scale, rel=0.05)
    assert plans["none"]["second.weight"].note == ""
    assert "a recurrence follows" in plans[layer]["second.weight"].note


@pytest.mark.parametrize("layer", ["LSTM", "GRU", "GRUCell"])
def test_gradients_before_a_recurrence_are_constant(layer: str) -> None:
    found = gathered(lambda: Recurrent(layer), white(32, 12, 48), 8, mode="backward")
    ratio = found["first.weight"] / found["second.weight"]
    assert abs(float(ratio.mean()) - 1) < 5 * float(ratio.std()) / len(ratio) ** 0.5 + 0.05
