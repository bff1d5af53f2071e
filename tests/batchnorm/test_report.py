"""What a report says, and how it looks."""

import json
import math
import sys

import matplotlib
import pytest
import torch
from torch import nn

import unitvar
from tests.batchnorm.test_reestimate import mlp
from unitvar.batchnorm.report import BatchNormChange

matplotlib.use("Agg")


def small_report() -> unitvar.BatchNormReport:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2).eval().requires_grad_(False))
    x = torch.tensor([[0.0, 1.0], [4.0, 1.0]])
    return unitvar.reestimate_bn_(model, [x, x])


def test_rows_hold_old_and_new_and_the_shift_and_are_json() -> None:
    (row,) = json.loads(json.dumps(small_report().rows, allow_nan=False))
    assert row == {
        "layer": "0",
        "channels": 2,
        "values": 4,
        "batches": 2,
        "old_mean": 0.0,
        "new_mean": 1.5,
        "old_var": 1.0,
        "new_var": pytest.approx(8 / 3),
        "ratio": 0.0,
        "ratio_min": 0.0,
        "ratio_max": pytest.approx(16 / 3),
        "shift": None,  # a constant has no sigma
        "shift_max": None,
        "standard_error": 0.0,
    }


def test_ratio_shift_and_errors_are_per_channel() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(3)
    norm.running_mean.fill_(2.0)
    norm.running_var.fill_(4.0)
    data = [torch.randn(50, 3) for _ in range(4)]
    report = unitvar.reestimate_bn_(norm, data)
    layer, x = report[""], torch.cat(data).double()
    torch.testing.assert_close(layer.ratio, x.var(0) / 4, rtol=1e-5, atol=0)
    torch.testing.assert_close(layer.shift, (x.mean(0) - 2) / x.std(0), rtol=1e-5, atol=0)
    assert layer.standard_error.shape == (3,)
    assert math.isclose(report.rows[0]["standard_error"], float(layer.standard_error.max()))
    assert (layer.old_mean == 2).all()
    assert torch.equal(layer.new_var, norm.running_var)
    norm.running_var.fill_(0)  # a report is a record, not a view
    assert (layer.new_var > 0).all()


def test_shifts_of_opposite_sign_do_not_cancel() -> None:
    zeros, ones = torch.zeros(2), torch.ones(2)
    change = BatchNormChange("", zeros, ones, torch.tensor([1.0, -2.0]), ones, 8, 2, zeros)
    assert change.row["shift"] == pytest.approx(math.sqrt((1 + 4) / 2))
    assert change.row["shift_max"] == 2.0


def test_one_batch_has_no_standard_error() -> None:
    report = unitvar.reestimate_bn_(nn.BatchNorm1d(2), [torch.randn(8, 2)])
    assert report.rows[0]["standard_error"] is None
    assert str(report).splitlines()[-1].endswith(" -")


def test_the_table() -> None:
    assert str(small_report()) == "\n".join(
        [
            "BatchNorm mean and variance, one-pass, 2 batches, 1 layer",
            "layer   values  old var  new var  new/old    shift     s.e.",
            "0            4        1    2.667        0        -      0 %",
            "kept: 1 (frozen)",
        ]
    )


def test_the_table_fits_80_columns_and_shows_whole_names() -> None:
    torch.manual_seed(0)
    inner: nn.Module = mlp(depth=2)
    for name in ("a_rather_long_name_of_a_module", "encoder", "and_another_one_that_is_very_long_indeed", "x" * 60):
        inner = _named(name, inner)
    report = unitvar.reestimate_bn_(inner, list(torch.randn(3, 16, 64) * 1e6))
    lines = str(report).splitlines()
    assert max(map(len, lines)) <= 80
    text = str(report).replace("\n", "")
    for layer in report:
        assert layer.name in text


def _named(name: str, inner: nn.Module) -> nn.Module:
    outer = nn.Sequential()
    outer.add_module(name, inner)
    return outer


def test_plot_draws_into_the_axes_it_gets_and_returns_them() -> None:
    from matplotlib import pyplot as plt

    report = unitvar.reestimate_bn_(mlp(), list(torch.randn(3, 16, 64)))
    figure, (left, right) = plt.subplots(1, 2)
    assert report.plot(left) is left
    assert len(left.lines[0].get_xdata()) == 6
    assert [label.get_text() for label in left.get_xticklabels()] == [layer.name for layer in report]
    assert not right.lines
    own = report.plot()
    assert own.figure is not figure
    plt.close(figure)
    plt.close(own.figure)


def test_plot_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'unitvar\[plot\]'"):
        small_report().plot()


def test_unknown_and_kept_names_are_told_apart() -> None:
    report = small_report()
    with pytest.raises(KeyError, match="kept: frozen"):
        report["1"]
    with pytest.raises(KeyError, match="not one of '0'"):
        report["7"]


def test_report_is_frozen() -> None:
    with pytest.raises(AttributeError):
        small_report().batches = 3
