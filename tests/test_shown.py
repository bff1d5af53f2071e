"""How results show themselves: a short repr, a table in a notebook, a data frame."""

import builtins
import json
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import nn

import unitvar
from unitvar.flow import LayerFlow
from unitvar.shown import counted, number, percent


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))


def history() -> unitvar.History:
    model = network()
    with unitvar.watch(model, every=2) as found:
        for _ in range(3):
            model(torch.randn(16, 8)).sum().backward()
    return found


def batches() -> list[torch.Tensor]:
    return [torch.randn(16, 8) for _ in range(3)]


RESULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "plan": (lambda: unitvar.initialize_(network(), batches()[0]), "<Plan: sphere weights, mode forward: 2 weights"),
    "report": (lambda: unitvar.measure(network(), batches()[0]), "<VarianceReport: 2 weights; "),
    "history": (history, "<History: 3 steps, observed 2 times, first at 0 and last at 2>"),
    "batch norms": (
        lambda: unitvar.reestimate_bn_(network(), batches()),
        "<BatchNormReport: BatchNorm mean and variance, one-pass, 3 batches, 1 layer>",
    ),
    "statistics": (
        lambda: unitvar.bn_statistics(network(), batches()),
        "<BatchNormStatistics: 1 layer, one-pass, 3 batches>",
    ),
    "activation": (lambda: unitvar.activation_moments("relu"), "ActivationMoments(mean=0.398"),
    "moments": (lambda: unitvar.Moments(0.0, 1.0, (2, 3)), "Moments(mean=0, second=1, shape=(2, 3))"),
    "expectation": (
        lambda: unitvar.expect(network().eval(), batches()[0]),
        "<Expectation: mean and variance of 1 tensor of shape (16, 4); no op sampled>",
    ),
    "layer of a plan": (lambda: unitvar.plan(network(), batches()[0])["4.weight"], "<LayerPlan 4.weight: op linear, "),
    "layer of a report": (lambda: unitvar.measure(network(), batches()[0])["4.weight"], "<LayerFlow 4.weight: use 1, "),
    "norm of a report": (lambda: unitvar.measure(network(), batches()[0]).norms[0], "<NormGap 1: use 1, on 0."),
    "changed norm": (
        lambda: unitvar.reestimate_bn_(network(), batches())["1"],
        "<BatchNormChange 1: channels 16, values 48, batches 3, old_mean 0, new_mean ",
    ),
}
TABLES = ("plan", "report", "history", "batch norms", "statistics")


class Cells(HTMLParser):
    """Read the cells of tables, and refuse tags that are not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.tables: list[list[list[str]]] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.rows.append([])
            self.tables[-1].append(self.rows[-1])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)


@pytest.mark.parametrize("name", RESULTS)
def test_a_repr_is_one_short_line(name: str) -> None:
    made, begin = RESULTS[name]
    text = repr(made())
    assert text.startswith(begin)
    assert "\n" not in text
    assert len(text) < 300
    assert "Layout(" not in text


@pytest.mark.parametrize("name", RESULTS)
def test_a_notebook_shows_a_table_with_a_line_for_every_row(name: str) -> None:
    result = RESULTS[name][0]()
    cells = Cells(result._repr_html_())
    assert cells.tables
    assert all(len({len(row) for row in table}) == 1 for table in cells.tables)
    names = {row[0] for row in cells.rows}
    for row in getattr(result, "rows", ()):
        assert row.get("name", row.get("layer")) in names
    if name == "plan":  # the same numbers as in the text
        text = str(result).split()
        assert all(word in text for row in cells.rows[1:] for cell in row[4:] for word in cell.split())
        assert "inputs: measured from the batch" in result._repr_html_()
    if name == "report":  # the conclusion first
        assert result._repr_html_().count(result.verdict) == 1
        assert result._repr_html_().startswith(f'<div style="font-weight: bold">{result.verdict}</div>')


def test_one_record_shows_its_row() -> None:
    layer = unitvar.measure(network(), batches()[0])["4.weight"]
    shown = dict(row for row in Cells(layer._repr_html_()).rows[1:])
    assert shown == {key: number(x) if isinstance(x, float) else str(x) for key, x in layer.row.items()}
    quiet = LayerFlow("a", 1, "addmm", 8, 3e-17, 4e-17, 5e-17, None, 0.0, 1.0, None)
    assert repr(quiet) == (
        "<LayerFlow a: use 1, op addmm, size 8, mean 0, variance 4.00e-17, gradient 5.00e-17, predicted_mean 0, "
        "predicted_variance 1>"
    )


@pytest.mark.parametrize("name", TABLES)
def test_print_is_a_table_of_80_columns_with_a_line_for_every_row(name: str) -> None:
    result = RESULTS[name][0]()
    lines = str(result).splitlines()
    assert max(map(len, lines)) <= 80
    names = [line.split()[0] for line in lines if line]
    assert all(row.get("name", row.get("layer")) in names for row in result.rows)


def test_what_was_sampled_is_named_in_a_notebook() -> None:
    class Sorted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(x, 0.5, self.training).sort().values

    found = unitvar.expect(nn.Sequential(nn.Dropout(0.5), Sorted()), torch.randn(4, 8))
    assert found.sampled
    (op, where), *_ = found.sampled.items()
    assert f"{op} in {where} was sampled" in found._repr_html_()
    assert repr(found).endswith(f"; {counted(len(found.sampled), 'op')} sampled>")


def test_html_escapes_what_a_model_calls_its_layers() -> None:
    model = nn.ModuleDict({"<b>": nn.Linear(4, 4)})
    model.forward = lambda x: model["<b>"](x)  # type: ignore[method-assign]
    page = unitvar.plan(model, torch.zeros(2, 4))._repr_html_()
    assert "&lt;b&gt;.weight" in page
    assert "<b>" not in page


@pytest.mark.parametrize("name", TABLES)
def test_a_data_frame_has_the_rows(name: str) -> None:
    result = RESULTS[name][0]()
    frame = result.to_pandas()
    assert list(frame.columns) == list(result.rows[0])
    assert len(frame) == len(result.rows)
    again = json.loads(frame.to_json(orient="records", double_precision=15))
    for found, row in zip(again, result.rows, strict=True):
        assert found == {k: pytest.approx(v, rel=1e-6) if isinstance(v, float) else v for k, v in row.items()}


def test_norms_of_a_report_are_a_data_frame_too() -> None:
    report = unitvar.measure(network(), batches()[0])
    assert report.norms_to_pandas()["name"].tolist() == [row["name"] for row in report.norm_rows] == ["1"]


def test_without_pandas_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return real(name, *rest)

    plan = RESULTS["plan"][0]()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"to_pandas\(\) needs pandas: pip install pandas. Without it, use .rows"):
        plan.to_pandas()


def test_one_is_not_many() -> None:
    assert [counted(n, "layer") for n in (0, 1, 2)] == ["0 layers", "1 layer", "2 layers"]
    assert [counted(n, "batch") for n in (1, 2)] == ["1 batch", "2 batches"]


def test_what_rounding_leaves_is_nothing() -> None:
    assert number(2.96e-17, beside=1.0) == "0"
    assert number(2.96e-17) == "2.96e-17"  # where nothing says what it is beside
    assert number(None) == "-"
    assert [number(x) for x in (0.0, 0.5, 1234.5, 12345.6, 1e5)] == ["0", "0.5", "1234", "12346", "1.00e+05"]
    assert [number(x, digits=3) for x in (0.51234, 1234.5, 1e4)] == ["0.512", "1234", "1.00e+04"]
    model = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 4, bias=False))
    text = str(unitvar.measure(model, torch.randn(64, 4))) + str(unitvar.reestimate_bn_(model, [torch.randn(64, 4)]))
    assert not [word for word in text.split() if "e-1" in word]


def test_a_percentage_has_three_digits_at_most() -> None:
    shares = (0.0, 1e-5, 0.0012, 0.053, 0.0996, 0.5, 1.0)
    assert [percent(x) for x in shares] == ["0 %", "<0.1 %", "0.1 %", "5.3 %", "10 %", "50 %", "100 %"]


def test_dir_lists_what_the_package_offers() -> None:
    names = [name for name in dir(unitvar) if not name.startswith("__")]
    assert names == sorted(unitvar.__all__)


def test_progress_shows_the_runs(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = unitvar.measure(network(), batches()[0], runs=3)
    assert capsys.readouterr().err == ""
    torch.manual_seed(0)
    shown = unitvar.measure(network(), batches()[0], runs=3, progress=True)
    assert "4/4" in capsys.readouterr().err  # three runs and the prediction
    assert len(shown) == len(quiet)
