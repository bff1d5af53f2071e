"""healthy: the experiment runs, saves what it draws, and its networks are those it names."""

import json
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

from unitvar_reproduction.experiments.healthy import FILLS, Healthy, network


def test_a_small_run_saves_and_draws(tmp_path: Path) -> None:
    console = Console(record=True, width=80)
    sizes = {"depth": 4, "width": 16, "epochs": 1, "seeds": 1, "rates": (0.1, 0.01), "every": 5}
    Healthy(out=tmp_path, **sizes).run(console)
    saved = json.loads((tmp_path / "healthy.json").read_text(encoding="utf-8"))
    assert list(saved["verdicts"]) == list(FILLS) == ["PyTorch's default", "Xavier", "He", "unitvar"]
    assert len(saved["trials"]) == 8
    assert [row["name"] for row in saved["layers"]["unitvar"]] == ["1.weight", "4.weight", "7.weight", "10.weight"]
    assert [len(norms) for norms in saved["history"]["He"].values()] == [4] * 4  # steps 0, 5, 10 and 15
    assert {p.name for p in tmp_path.iterdir()} == {"healthy.json", "healthy.png", "healthy-training.png"}
    assert "test error" in console.export_text()


def test_only_the_initialisation_differs() -> None:
    torch.manual_seed(0)
    model = network(depth=3, width=16, dropout=0.5)
    assert [m.p for m in model if isinstance(m, nn.Dropout)] == [0.5, 0.5]
    for name, std in (("Xavier", (1 / 16) ** 0.5), ("He", (2 / 16) ** 0.5)):
        FILLS[name](model, torch.randn(8, 1, 8, 8))
        assert abs(float(model[4].weight.detach().std()) / std - 1) < 0.15
        assert not model[4].bias.any()
