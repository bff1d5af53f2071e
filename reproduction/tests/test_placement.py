"""Where dropout stands: what the networks do with it, and what is saved of every trial."""

import json
import statistics
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from unitvar_reproduction.experiments.placement import Placement, summarise
from unitvar_reproduction.networks.placed import AFTER, BEFORE, HEAD, NETWORKS, PLACES, placed
from unitvar_reproduction.statistics import estimate


def reached(network: str, place: str) -> tuple[int, set[str]]:
    """Count dropouts, and name the kinds of modules that read what a dropout made, or concatenate it."""
    model = placed(network, place, 0.5).train()
    marked: list[torch.Tensor] = []
    kinds: set[str] = set()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda _, __, out: marked.append(out))
        elif not list(module.children()) and not isinstance(module, nn.Identity):
            module.register_forward_pre_hook(
                lambda m, x: kinds.add(type(m).__name__) if any(x[0] is t for t in marked) else None
            )
    model(torch.randn(4, 1, 8, 8))
    return len(marked), kinds


@pytest.mark.parametrize("network", NETWORKS)
def test_dropout_stands_where_it_is_said_to(network: str) -> None:
    assert reached(network, HEAD) == (1, {"Linear"})
    count, kinds = reached(network, AFTER)
    assert count > 2
    assert kinds == {"Conv2d"}
    count, kinds = reached(network, BEFORE)
    assert count > 2
    # In a DenseNet it reaches BatchNorm by way of a concatenation or a pooling.
    assert kinds == ({"BatchNorm2d"} if network == "resnet" else {"AvgPool2d"})


@pytest.mark.parametrize("network", NETWORKS)
def test_without_dropout_all_places_are_the_same_network(network: str) -> None:
    outputs = []
    for place in PLACES:
        torch.manual_seed(0)
        outputs.append(placed(network, place, 0.5).eval()(torch.ones(2, 1, 8, 8)))
    assert all(torch.equal(outputs[0], other) for other in outputs)


@pytest.mark.parametrize(("network", "place"), [("vgg", HEAD), ("resnet", "nowhere")])
def test_what_is_unknown_is_refused(network: str, place: str) -> None:
    with pytest.raises(ValueError, match="is not one of"):
        placed(network, place, 0.5)


def test_every_place_and_rate_is_judged_saved_and_resumed(tmp_path: Path) -> None:
    experiment = Placement(tmp_path, seeds=2, epochs=1, rates=(0.0, 0.5), workers=1)
    experiment.run(Console(quiet=True))
    files = sorted((tmp_path / "placement").glob("*.json"))
    assert len(files) == 2 * len(NETWORKS) * (1 + len(PLACES))
    times = [file.stat().st_mtime_ns for file in files]
    experiment.run(Console(quiet=True))
    assert times == [file.stat().st_mtime_ns for file in files]
    rows = json.loads((tmp_path / "placement.json").read_text(encoding="utf-8"))["rows"]
    assert len(rows) == len(NETWORKS) * (1 + len(PLACES))
    # Only where nothing is dropped before a BatchNorm do masks play no part: then the control is ours.
    for row in rows:
        same = row["log_loss"]["dropout on"]["mean"] == pytest.approx(
            row["log_loss"]["mean and variance"]["mean"], 1e-4
        )
        assert same == (row["place"] in ("no dropout", HEAD))
    for row in rows:
        shifted = row["place"] not in ("no dropout", HEAD)
        assert (row["predicted_variance_ratio"] > 2) == shifted
    assert (tmp_path / "placement.png").stat().st_size > 10_000


def test_differences_are_paired() -> None:
    def record(seed: int, before: float, after: float) -> dict[str, object]:
        config = {"network": "resnet", "place": BEFORE, "dropout": 0.5, "seed": seed}
        worth = {"as trained": before, "dropout on": before, "mean and variance": after}
        measured = {name: {"error": value, "log_loss": value} for name, value in worth.items()}
        return {"config": config, "measured": measured, "largest_variance_ratio": 2.0}

    (row,) = summarise([record(0, 0.5, 0.4), record(1, 0.9, 0.7), record(2, 0.1, 0.1)])
    found = row["log_loss minus as trained"]["mean and variance"]
    assert found["mean"] == pytest.approx(statistics.mean([-0.1, -0.2, 0.0]))
    assert found["half_width"] == pytest.approx(estimate([-0.1, -0.2, 0.0]).half_width)
    assert row["log_loss minus as trained"]["dropout on"]["mean"] == 0
