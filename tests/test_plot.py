"""plot: takes an axes, returns it."""

from matplotlib.figure import Figure

from unitvar import plot


def test_by_depth_draws_each_line_on_the_axes_given() -> None:
    ax = Figure().subplots()
    assert plot.by_depth({"a": [1.0, 2.0], "b": [1.0, 0.5, 0.25]}, ax=ax) is ax
    drawn = {line.get_label(): list(line.get_ydata()) for line in ax.get_lines()}
    assert drawn["a"] == [1.0, 2.0]
    assert drawn["b"] == [1.0, 0.5, 0.25]
    assert ax.get_yscale() == "log"
    assert ax.get_legend() is not None
    assert plot.by_depth({"a": [1.0]}, ax=Figure().subplots(), legend=False).get_legend() is None
