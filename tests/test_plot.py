"""plot: takes an axes, returns it."""

import itertools
import math
from collections import OrderedDict

import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from torch import nn

import unitvar
from unitvar import cli, plot
from unitvar.plot.axes import logarithmic, shortened


def drawn(ax) -> dict[str, list[float]]:
    return {line.get_label(): list(line.get_ydata()) for line in ax.get_lines()}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(7) for m in (nn.Linear(32, 32), nn.ReLU(), nn.Dropout(0.5))))


def test_by_depth_draws_each_line_on_the_axes_given() -> None:
    ax = Figure().subplots()
    assert plot.by_depth({"a": [1.0, 2.0], "b": [1.0, 0.5, 0.25]}, ax=ax) is ax
    assert drawn(ax)["a"] == [1.0, 2.0]
    assert drawn(ax)["b"] == [1.0, 0.5, 0.25]
    assert ax.get_yscale() == "log"
    assert ax.get_legend() is not None
    assert plot.by_depth({"a": [1.0]}, ax=Figure().subplots(), legend=False).get_legend() is None


def test_a_report_draws_measured_as_points_and_predicted_as_lines() -> None:
    report = unitvar.measure(network(), torch.randn(64, 32))
    ax = Figure().subplots()
    assert report.plot(ax) is ax
    points, forward, triangles, backward, _ = ax.get_lines()
    assert list(forward.get_ydata()) == [x.predicted_variance for x in report]
    assert list(points.get_ydata()) == [x.variance for x in report]
    last = report.layers[-1].gradient * report.layers[-1].size
    assert list(backward.get_ydata()) == pytest.approx([x.predicted_gradient * x.size / last for x in report])
    assert list(triangles.get_ydata()) == pytest.approx([x.gradient * x.size / last for x in report])
    assert (points.get_linestyle(), points.get_marker(), forward.get_marker()) == ("None", "o", "None")
    assert ax.get_yscale() == "log"


def parts_of(ax) -> dict[str, Bbox]:
    """Return where title, legend and data stand, in pixels."""
    title = next(t for t in (ax.title, ax._left_title, ax._right_title) if t.get_text())
    return {
        "title": title.get_window_extent(),
        "legend": ax.get_legend().get_window_extent(),
        "data": ax.get_window_extent(),
    }


def test_a_picture_names_layers_and_has_the_verdict_as_title_and_no_legend_on_data() -> None:
    report = unitvar.measure(network(), torch.randn(64, 32))
    ax = report.plot(Figure(layout="constrained").subplots())
    assert [t.get_text() for t in ax.get_xticklabels()] == [x.label for x in report]
    assert " ".join(ax.get_title("left").split()) == report.verdict
    ax.figure.draw_without_rendering()
    parts = parts_of(ax)
    assert parts["legend"].y0 >= parts["data"].y1 - 1
    assert parts["title"].y0 >= parts["legend"].y1 - 1
    long = nn.Sequential(*(nn.Linear(4, 4) for _ in range(40)))
    ax = unitvar.measure(long, torch.randn(8, 4)).plot(Figure().subplots())
    names = [t.get_text() for t in ax.get_xticklabels()]
    assert len(names) <= 12
    assert (names[0], names[1], names[-1]) == ("0.weight", "4.weight", "39.weight")
    steps = {b - a for a, b in itertools.pairwise(ax.get_xticks()[:-1])}
    assert steps == {4}  # names at equal distances do not run into each other


def test_the_picture_of_explain_lays_nothing_on_top_of_anything() -> None:
    model = nn.Sequential(OrderedDict((f"a_block_with_a_long_name_{i}", nn.Linear(8, 8)) for i in range(3)))
    x = torch.randn(64, 8)
    figure = cli._figure(2)
    for row, title in enumerate(("as it is", "as planned")):
        cli._draw(figure, row, title, unitvar.measure(model, x), model, (x,))
    figure.draw_without_rendering()
    for ax, title in zip(figure.axes[::2], ("as it is", "as planned"), strict=True):
        parts = parts_of(ax)
        assert " ".join(ax.get_title("left").split()).startswith(f"{title}: signal variance ")
        assert not ax.get_title("center")
        assert not any(a.overlaps(b.padded(-1)) for a, b in itertools.combinations(parts.values(), 2))
        assert figure.bbox.padded(1).containsx(parts["title"].x1)


def test_a_long_name_keeps_its_block_and_its_weight() -> None:
    assert shortened("features.0.weight") == "features.0.weight"
    assert shortened("model.layers.10.self_attn.q_proj.weight") == "model.layers.10…q_proj.weight"
    assert len(shortened("x" * 99)) == 30


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.95, 1.05], ["0.5", "1", "2"]),  # a decade, so that a few per cent do not look wild
        ([0.02, 1.0], ["0.02", "0.05", "0.1", "0.2", "0.5", "1"]),
    ],
)
def test_ticks_are_plain_numbers_where_they_are_few(values: list[float], labels: list[str]) -> None:
    ax = Figure().subplots()
    ax.plot(values)
    logarithmic(ax)
    ax.figure.draw_without_rendering()
    low, high = ax.get_ylim()
    assert high / low >= 10 * (1 - 1e-9)
    ticks = zip(ax.get_yticks(), ax.yaxis.get_majorticklabels(), strict=True)
    assert [label.get_text() for tick, label in ticks if low <= tick <= high] == labels
    assert not any(label.get_text() for label in ax.yaxis.get_minorticklabels())


@pytest.mark.parametrize("gain", [0.2, 1.0, 5.0])
def test_the_picture_shows_what_the_verdict_says(gain: float) -> None:
    """Of another width at every layer, E g² goes its own way; the norm decides, and is what is drawn."""
    torch.manual_seed(0)
    widths = [16 * 2 ** (i % 4) for i in range(13)]
    model = nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(widths)))
    for layer in model:
        unitvar.init.normal_(layer.weight, gain=gain)  # type: ignore[union-attr]
    report = unitvar.measure(model, torch.randn(64, 16))
    ax = report.plot(Figure().subplots())
    drawn_norms = list(ax.get_lines()[2].get_ydata())
    words = {0.2: "vanishing", 1.0: "steady", 5.0: "exploding"}
    assert report.verdict.count(words[gain]) >= 2 or gain == 1.0
    assert (drawn_norms[0] > 1e4) == (gain > 1)
    assert (drawn_norms[0] < 1e-5) == (gain < 1)
    assert report.healthy == (gain == 1.0)


def test_a_plan_draws_what_reaches_each_weight_and_the_scale_it_gets() -> None:
    plan = unitvar.plan(network(), torch.zeros(4, 32))
    ax = Figure().subplots()
    assert plan.plot(ax) is ax
    second, scale, predicted, _ = ax.get_lines()
    assert list(second.get_ydata()) == [x.second for x in plan]
    assert list(scale.get_ydata()) == [x.scale for x in plan]
    assert list(predicted.get_ydata()) == [x.predicted for x in plan]
    assert [t.get_text() for t in ax.get_xticklabels()] == [x.name for x in plan]
    empty = unitvar.plan(nn.Sequential(nn.ReLU()), torch.zeros(4, 32)).plot(Figure().subplots())
    assert [text.get_text() for text in empty.texts] == ["the plan has no weights"]


def test_what_was_not_measured_is_not_drawn() -> None:
    report = unitvar.measure(network().requires_grad_(False), torch.randn(64, 32))
    assert all(math.isnan(y) for y in report.plot(Figure().subplots()).get_lines()[2].get_ydata())


def test_a_history_draws_one_line_a_layer() -> None:
    model = network()
    with unitvar.watch(model, every=1) as history:
        for _ in range(3):
            model(torch.randn(8, 32)).sum().backward()
    ax = Figure().subplots()
    assert history.plot(ax) is ax
    found = drawn(ax)
    assert found["6.weight"] == [r["weight_gradient_norm"] for r in history.rows if r["name"] == "6.weight"]
    assert len(found) == 7
    assert all(tick == round(tick) for tick in ax.get_xticks())  # there is no step 0.5
    assert drawn(history.plot(Figure().subplots(), what="variance"))["0.weight"][0] == history.rows[0]["variance"]
    with pytest.raises(
        ValueError, match=r"what='loss' is not one of 'weight_gradient_norm', 'update_ratio', 'gradient', "
    ):
        history.plot(what="loss")


def test_empty_axes_say_why_they_are() -> None:
    history = unitvar.watch(network())
    for ax, words in (
        (history.plot(Figure().subplots()), "no step was observed"),
        (plot.by_depth({}, ax=Figure().subplots()), "none"),
    ):
        assert [text.get_text() for text in ax.texts] == [words]
        assert ax.get_legend() is None


def test_distributions_are_densities_of_inputs_and_outputs() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512, bias=False))
    unitvar.init.sphere_(model[0].weight, "identity")
    ax = Figure().subplots()
    assert plot.distributions(model, torch.randn(512, 512), ax=ax) is ax
    lines = {line.get_label(): line for line in ax.get_lines()}
    x = torch.tensor(lines["output z"].get_xdata())
    normal, output = (torch.tensor(lines[name].get_ydata()) for name in ("|N(0, 1)|", "output z"))
    # All three are N(0, 1) here, and each is drawn to the same scale.
    assert (normal - output).abs().max() < 0.05 * normal.max()
    assert (torch.tensor(lines["input x, zeros left out"].get_ydata()) - normal).abs().max() < 0.05 * normal.max()
    assert float(x[output.argmax()]) == pytest.approx(0.0, abs=0.15)  # the mode of log |N(0, 1)|
    assert [t.get_text() for t in ax.get_yticklabels()] == ["0.weight"]


def test_distributions_takes_names_and_spreads_without_them() -> None:
    ax = plot.distributions(network(), torch.randn(64, 32), ["3.weight", "0.weight"], ax=Figure().subplots())
    assert [t.get_text() for t in ax.get_yticklabels()] == ["0.weight", "3.weight"]
    ax = plot.distributions(network(), torch.randn(64, 32), ax=Figure().subplots())
    assert len(ax.get_yticklabels()) == 5
    with pytest.raises(ValueError, match=r"layers has '1.weight', which is not one of '0.weight', '3.weight'"):
        plot.distributions(network(), torch.randn(64, 32), ["1.weight"])


def test_shares_stack_to_one_with_the_prediction_beside_them() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10))
    x = torch.randn(64, 32)
    plan = unitvar.initialize_(model, x)
    report = unitvar.measure(model, x, runs=2)
    for result, lines in ((plan, 0), (report, 2)):
        ax = result.plot_shares(ax=Figure().subplots())
        top = max(float(path.vertices[:, 1].max()) for area in ax.collections for path in area.get_paths())
        assert top == pytest.approx(1, abs=1e-6)
        assert len(ax.collections) == 3
        assert len(ax.lines) == lines
        assert [t.get_text() for t in ax.get_xticklabels()] == ["0.weight", "3.weight"]
    assert "2 runs or more" in unitvar.measure(model, x, runs=1).plot_shares(Figure().subplots()).texts[0].get_text()
    assert "signal predicted" in " ".join(str(report).split())
    plain = unitvar.measure(nn.Sequential(nn.Linear(32, 8)), x, runs=2)
    assert "signal predicted" not in " ".join(str(plain).split())
