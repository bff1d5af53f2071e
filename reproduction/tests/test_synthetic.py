"""Figure 1 and Appendix A: against the laws they illustrate, and errors written out by hand."""

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from unitvar_reproduction import record
from unitvar_reproduction.experiments import synthetic
from unitvar_reproduction.experiments.backward import Backward
from unitvar_reproduction.experiments.forward import Forward
from unitvar_reproduction.experiments.sections import SECTIONS
from unitvar_reproduction.experiments.synthetic import (
    INPUTS,
    SIZES,
    Histogram,
    bare_mask,
    errors,
    feed,
    growth,
    weights,
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A narrow network with few inputs, as deep as the paper's."""
    monkeypatch.setattr(synthetic, "INPUTS", 60)
    monkeypatch.setattr(synthetic, "SIZES", (40,) * 15 + (20,) * 6)


def test_the_network_has_the_notebooks_size() -> None:
    assert (INPUTS, len(SIZES), sum(SIZES)) == (1000, 21, 15 * 500 + 6 * 250)


@pytest.mark.parametrize(
    ("init", "keep", "first", "factor"), [("forward", 0.6, 1, 1), ("xavier", 1.0, 1, 0.5), ("he", 0.6, 2, 1 / 0.6)]
)
def test_the_signal_grows_by_the_law_a_layer(init: str, keep: float, first: float, factor: float) -> None:
    # The mean over seeds of log E z² after 14 layers of equal width; one network scatters by some 20 % there.
    with torch.no_grad():
        logs = [math.log(growth([layer.z for layer in feed(init, "relu", keep, seed)])[14]) for seed in range(4)]
    assert np.mean(logs) == pytest.approx(math.log(first) + 14 * math.log(factor), abs=0.35)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["relu", "tanh", "gelu"])
def test_errors_are_those_of_the_chain_rule_with_either_mask(name: str) -> None:
    keep, seed = 0.6, 3
    layers = feed("forward", name, keep, seed)
    flown = errors(layers, seed)
    generator = torch.Generator().manual_seed(seed)
    torch.randn(synthetic.INPUTS, synthetic.SIZES[0], generator=generator)
    matrices, masks = [], []
    for weight, layer in zip(weights("forward", name, keep, generator), layers, strict=True):
        matrices.append(weight)
        masks.append(torch.rand(layer.z.shape, generator=generator) < keep)
    for scale, found in ((1 / keep, flown), (1.0, bare_mask(flown, keep))):
        delta = flown[-1]
        for i in reversed(range(len(layers) - 1)):
            z = layers[i].z.detach().requires_grad_()
            (slope,) = torch.autograd.grad(synthetic.NAMES[name](z).sum(), z)
            delta = (delta @ matrices[i + 1]) * slope * masks[i] * scale
            assert torch.allclose(found[i], delta, rtol=1e-3, atol=1e-6 * delta.abs().max().item())
        assert found[-1].std().item() == pytest.approx(0.01, rel=5 / math.sqrt(2 * found[-1].numel()))


def test_under_autograd_the_papers_backward_weights_let_errors_explode_and_the_exact_ones_keep_them() -> None:
    ratios = {}
    for init in ("paper-backward", "backward"):
        flown = errors(feed(init, "relu", 0.6, 0), 0)
        ratios[init] = growth(flown)[0] / growth(flown)[-1]
        if init == "paper-backward":
            bare = growth(bare_mask(flown, 0.6))
            ratios["bare"] = bare[0] / bare[-1]
    # By the laws: p⁻² a layer, and half of it lost where 500 units become 250.
    assert math.log10(ratios["paper-backward"]) == pytest.approx(math.log10(0.6**-40 / 2), abs=0.3)
    assert 0.5 < ratios["backward"] < 2
    assert 0.25 < ratios["bare"] < 1


def test_a_histogram_is_a_density() -> None:
    values = torch.randn(10_000)
    histogram = Histogram.of(torch.cat([values, torch.tensor([math.inf, math.nan])]))
    width = (histogram.high - histogram.low) / len(histogram.density)
    assert sum(histogram.density) * width == pytest.approx(1, rel=1e-3)
    x, y = histogram.steps()
    assert len(x) == len(y)
    assert np.trapezoid(y, x) == pytest.approx(1, rel=1e-3)
    assert Histogram.of(torch.tensor([math.nan])) == Histogram(0.0, 0.0, ())


def test_an_init_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match=r"init='lecun' is not one of 'forward'"):
        next(weights("lecun", "relu", 1.0, torch.Generator()))


@pytest.mark.parametrize("experiment", [Forward, Backward])
def test_an_activation_that_does_not_exist_is_named_before_anything_runs(
    tmp_path: Path, experiment: type[Forward | Backward], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(synthetic, "INPUTS")  # nothing can be fed
    with pytest.raises(ValueError, match=r"'rleu'.*did you mean 'relu'"):
        experiment(tmp_path, activations=("gelu", "rleu")).run(Console(quiet=True))


@pytest.mark.usefixtures("small")
def test_without_other_activations_there_is_still_a_section(tmp_path: Path) -> None:
    Forward(tmp_path, seeds=1, activations=()).run(Console(quiet=True))
    section = SECTIONS["forward"](record.load(tmp_path / "forward.json"))
    assert len(section.found) == 1


@pytest.mark.usefixtures("small")
def test_both_print_draw_and_save(tmp_path: Path) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    Forward(out=tmp_path, seeds=2).run(console)
    Backward(out=tmp_path, seeds=2).run(console)
    text = console.export_text()
    assert "…" in text  # a range, not a cut: the tables are narrower than the line
    assert max(len(line) for line in text.splitlines()) <= 80
    forward, backward = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("forward", "backward"))
    assert len(forward["relu"]) == 6
    assert [len(run) for run in forward["relu"][0]["second"]] == [21, 21]
    assert len(backward["relu"]) == 12
    assert {row["activation"] for row in forward["others"]} == {row["activation"] for row in backward["others"]}
    for name in ("forward", "forward_others", "backward"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
