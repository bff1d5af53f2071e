"""The zoo: sizes are the published ones, and what is measured is what a hook sees."""

import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

import zoo
from unitvar_reproduction.experiments import zoo as experiment
from zoo import PLAIN, Family, convolutional, sequence


@pytest.mark.parametrize(
    ("make", "millions"),
    [
        pytest.param(convolutional.resnet, 25.557, id="ResNet-50"),
        pytest.param(convolutional.convnext, 28.589, id="ConvNeXt-T"),
        pytest.param(convolutional.vgg, 14.98, id="the paper's VGG"),
        pytest.param(sequence.mixer, 18.5, id="Mixer-S/16"),
    ],
)
def test_real_sizes_are_the_published_ones(make: Family, millions: float) -> None:
    with torch.device("meta"):
        model, _ = make()
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=2e-3)


def test_measured_is_what_a_hook_sees() -> None:
    torch.manual_seed(0)
    model, example = PLAIN["U-Net"][1]()
    seen: dict[str, float] = {}
    for name, module in model.named_modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            module.register_forward_hook(
                lambda _m, _i, out, name=name: seen.update({f"{name}.weight": out.square().mean().item()})
            )
    found = experiment.measured(model, example)
    assert found == pytest.approx(seen, rel=1e-4)


def test_a_row_counts_every_weight() -> None:
    made = experiment.row("MLP", PLAIN["MLP"][1], draws=2)
    assert (made.found, made.measured, made.near, made.alone, made.traced) == (7, 7, 7, {}, "without data")
    assert 1 / 1.5 < made.worst < 1.5


def test_a_weight_that_is_far_off_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "measured", lambda model, example: {"0.weight": 1.0, "3.weight": 0.25})
    made = experiment.row("MLP", PLAIN["MLP"][1], draws=1)
    assert (made.measured, made.near, made.where) == (2, 1, "3.weight")
    assert made.worst == pytest.approx(0.25, rel=1e-6)


def test_the_command_saves_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "PLAIN", {"MLP": PLAIN["MLP"]})
    monkeypatch.setattr(zoo, "ATTENDING", {})
    monkeypatch.setattr(zoo, "HUGGING_FACE", {})
    console = Console(record=True, width=100)
    experiment.Zoo(out=tmp_path, draws=1, small=True).run(console)
    assert "7 of 7" in console.export_text()
    assert (tmp_path / "zoo.json").exists()


def test_without_a_checkout_the_command_says_where_the_models_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zoo", None)
    with pytest.raises(ValueError, match="in the folder zoo of a checkout"):
        experiment.Zoo().run(Console(quiet=True))
