"""What the pages print of federated, merged, shifted and placed networks is what the result files hold."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def results(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((ROOT / f"reproduction/results/{name}.json").read_text("utf-8"))["rows"]
    return rows


def tables(page: str, section: str) -> list[list[list[str]]]:
    """Give the tables below a heading, as lists of cells without their heads."""
    text = (ROOT / "docs" / page).read_text("utf-8").partition(f"# {section}\n")[2].partition("\n#")[0]
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    return [[[cell.strip() for cell in line.strip("|").split("|")] for line in block[2:]] for block in blocks]


def shown(estimate: dict[str, float], digits: int = 2, unit: float = 100) -> str:
    mean = round(unit * estimate["mean"], digits) + 0.0  # no negative zero
    return f"{mean:.{digits}f} ± {unit * estimate['half_width']:.{digits}f}".replace("-", "−")


def test_federated_clients() -> None:
    by_name = {row["statistics"]: row for row in results("federated")}
    names = ("averaged running statistics", "merged, one message a client", "merged, a layer at a time",
             "pooled, all data in one place")  # fmt: skip
    (table,) = tables("statistics.md", "Federated clients")
    for cells, row in zip(table, (by_name[name] for name in names), strict=True):
        paired = "" if row["error minus averaged"]["mean"] == 0 else shown(row["error minus averaged"])
        assert cells[1:] == [shown(row["error"]), shown(row["log_loss"], 3, 1), paired]


def test_merged_weights() -> None:
    (table,) = tables("statistics.md", "Merged weights")
    found = results("merging")
    for cells, weights in zip(table, dict.fromkeys(row["weights"] for row in found), strict=True):
        averaged, updated, ours = (row for row in found if row["weights"] == weights)
        errors = [shown(row["error"]) for row in (averaged, updated, ours)]
        loss = shown(ours["log_loss minus update_bn"], 3, 1)
        assert cells[1:] == [*errors, shown(ours["error minus update_bn"]), loss]


def test_a_shifted_test_set() -> None:
    (table,) = tables("statistics.md", "A shifted test set")
    kinds = {"source": "source", "target": "target", "blended": "blended, 1024 old values"}
    found = {(row["corruption"], row["statistics"], row["target_images"]): row for row in results("shift")}
    assert len(table) == 11
    for images, kind, *errors in table:
        rows = [
            found[name, kinds[kind], int(images.replace(",", ""))] for name in ("none", "noise", "blur", "contrast")
        ]
        assert errors == [shown(row["error"], 1) for row in rows]


@pytest.mark.parametrize(("index", "network"), [(0, "resnet"), (1, "densenet")])
def test_where_dropout_stands(index: int, network: str) -> None:
    table = tables("after-training.md", "Where to put dropout")[index]
    own = {(row["dropout"], row["place"]): row for row in results("placement") if row["network"] == network}
    assert len(table) == len(own)
    for dropout, *cells in table:
        rate, _, place = dropout.partition(" ")
        row = own[(0.0, "no dropout") if rate == "none" else (float(rate), place)]
        changes = [row[f"{metric} minus as trained"]["mean and variance"] for metric in ("error", "log_loss")]
        ratios = row["predicted_variance_ratio"], row["largest_variance_ratio"]["mean"]
        assert cells == [
            *(f"{ratio:.2f}" for ratio in ratios), shown(row["error"]["as trained"]), shown(changes[0]),
            shown(changes[1], 4, 1),
        ]  # fmt: skip
