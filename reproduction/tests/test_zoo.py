"""The zoo: sizes are the published ones, and what is measured is what a hook sees."""

import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

import zoo
from unitvar_reproduction.experiments import zoo as experiment
from zoo import PLAIN, Family, convolutional, sequence, timm_models


@pytest.mark.parametrize(
    ("make", "millions"),
    [
        pytest.param(convolutional.resnet, 25.557, id="ResNet-50"),
        pytest.param(convolutional.convnext, 28.589, id="ConvNeXt-T"),
        pytest.param(convolutional.vgg, 14.98, id="the paper's VGG"),
        pytest.param(sequence.mixer, 18.5, id="Mixer-S/16"),
        pytest.param(timm_models.efficientnet, 5.289, id="EfficientNet-B0"),
        pytest.param(timm_models.maxvit, 30.92, id="MaxViT-T"),
        pytest.param(timm_models.xcit, 3.05, id="XCiT-N12/16"),
        pytest.param(timm_models.levit, 7.78, id="LeViT-128S"),
        pytest.param(timm_models.mobilevit, 5.58, id="MobileViT-S"),
        pytest.param(timm_models.swin_v2, 28.35, id="Swin-v2-T"),
        pytest.param(timm_models.nf_resnet, 25.557, id="NF-ResNet-50"),
        pytest.param(timm_models.cait, 11.96, id="CaiT-XXS-24"),
        pytest.param(timm_models.poolformer, 11.92, id="PoolFormer-S12"),
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
    monkeypatch.setattr(zoo, "TIMM", {})
    console = Console(record=True, width=100)
    experiment.Zoo(out=tmp_path, draws=1, small=True).run(console)
    assert "7 of 7" in console.export_text()
    assert (tmp_path / "zoo.json").exists()


@pytest.mark.parametrize("package", ["transformers", "timm"])
def test_families_of_a_missing_package_are_left_out_with_a_line(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zoo, "PLAIN", {"MLP": PLAIN["MLP"]})
    for families in ("ATTENDING", "HUGGING_FACE", "TIMM"):
        monkeypatch.setattr(zoo, families, {})
    monkeypatch.setattr(zoo, {"transformers": "HUGGING_FACE", "timm": "TIMM"}[package], {"Absent": PLAIN["MLP"]})
    monkeypatch.setattr(experiment.importlib.util, "find_spec", lambda name: None if name == package else object())
    console = Console(record=True, width=100)
    experiment.Zoo(out=tmp_path, draws=1, small=True).run(console)
    assert f"Without {package} there is no Absent: pip install {package}" in console.export_text()


def test_timm_leaves_no_stand_in_for_torchvision_behind() -> None:
    timm_models.poolformer(small=True)
    stand_ins = [n for n, m in sys.modules.items() if n.startswith("torchvision") and not hasattr(m, "__file__")]
    assert not stand_ins


def test_without_a_checkout_the_command_says_where_the_models_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zoo", None)
    with pytest.raises(ValueError, match="in the folder zoo of a checkout"):
        experiment.Zoo().run(Console(quiet=True))
