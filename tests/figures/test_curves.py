"""Line plots, and the figures files that can be plotted."""

from dataclasses import asdict
from itertools import pairwise

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from golddiff.figures.curves import COLOURS, Panel, Series, draw_panels
from golddiff.system.errors import ArgumentError
from golddiff_lab.figures.recorded import panels_of

PANELS = [
    Panel("a", "x", "y", [Series("one", [1, 2, 4], [3.0, None, 5.0]), Series("two", [1], [2])]),
    Panel("b", "x", "y", [Series("two", [1, 10], [2, 3], [1, 2], [3, 4])], "log", "log", True),
]


def test_panels_are_read_back_from_their_figures():
    figures = [asdict(panel) for panel in PANELS]
    assert [asdict(panel) for panel in panels_of({"panels": figures})] == figures


def test_a_series_has_one_colour_in_all_panels_and_one_legend_entry():
    figure = draw_panels(PANELS, "title")
    first, second = figure.axes
    assert [line.get_color() for line in first.lines] == list(COLOURS[:2])
    assert second.lines[0].get_color() == COLOURS[1]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["one", "two"]
    assert second.xaxis_inverted()


def test_a_series_like_another_takes_its_colour():
    lines = [Series("one", [1], [1]), Series("base", [1], [1], like="one"), Series("two", [1], [1])]
    drawn = draw_panels([Panel("a", "x", "y", lines)]).axes[0].lines
    assert [line.get_color() for line in drawn] == [COLOURS[0], COLOURS[0], COLOURS[1]]


def test_long_titles_stay_within_the_picture():
    long = Panel(
        "imagenet64-100 (100 classes), unconditional, 10 steps", "x", "y", [Series("one", [1], [1])]
    )
    figure = draw_panels([long, long], 8 * "From $5 to $10 a month " + "x")
    FigureCanvasAgg(figure).draw()
    for title in (figure._suptitle, *(axes.title for axes in figure.axes)):
        box = title.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.width


@pytest.mark.parametrize(
    "x", [range(25, 625, 25), range(25, 100_000, 25), [80 * 0.6**i for i in range(20)]]
)
def test_numbers_on_a_log_axis_are_values_of_the_lines_and_do_not_overlap(x):
    (axes,) = draw_panels([Panel("a", "x", "y", [Series("one", x, x)], "log")]).axes
    FigureCanvasAgg(axes.figure).draw()
    assert set(axes.get_xticks()) <= set(x)
    shown = [label for which in (False, True) for label in axes.get_xticklabels(minor=which)]
    boxes = sorted(
        tuple(label.get_window_extent().intervalx) for label in shown if label.get_text()
    )
    assert len(boxes) >= 6
    assert all(a[1] < b[0] for a, b in pairwise(boxes))


def test_the_y_axis_starts_at_the_floor_of_its_panel_and_ends_near_the_highest_value():
    low = Panel("a", "x", "r2", [Series("one", [1, 2], [-50.0, 0.5])], floor=-1.0)
    assert draw_panels([low]).axes[0].get_ylim() == (-1, pytest.approx(0.575))
    below = Panel("a", "x", "r2", [Series("one", [1, 2], [-3.0, -2.0])], floor=-1.0)
    bottom, top = draw_panels([below]).axes[0].get_ylim()
    assert bottom < -3 < -2 < top  # else the panel would be empty


def test_a_race_has_a_panel_of_times_and_one_of_known_errors():
    sides = {"ours": {"seconds": 1.0, "rmse": 0.1}, "theirs": {"seconds": 2.0, "rmse": None}}
    levels = [{"sigma": s, "sides": sides} for s in (10.0, 1.0)]
    time, error = panels_of({"levels": levels})
    assert {line.name: list(line.y) for line in time.series} == {
        "ours": [1.0, 1.0],
        "theirs": [2.0, 2.0],
    }
    assert [line.name for line in error.series] == ["ours"]
    alone = [{"sigma": 1.0, "sides": {"ours": sides["ours"]}}]  # no legend
    assert all("ours" in panel.title for panel in panels_of({"levels": alone}))


@pytest.mark.parametrize(
    "body",
    [
        *([], {}, {"panels": [1]}, {"panels": [{"title": "x"}]}, {"levels": []}, {"levels": 3}),
        {"panels": [asdict(PANELS[0]) | {"xscale": "cubic"}]},
    ],
)
def test_figures_without_valid_panels_are_refused(body):
    with pytest.raises(ArgumentError):
        panels_of(body)


def test_a_series_with_fewer_y_than_x_is_refused():
    broken = Panel("a", "x", "y", [Series("one", [1, 2], [3.0])])
    with pytest.raises(ArgumentError, match="its figures are not as golddiff writes them"):
        panels_of({"panels": [asdict(broken)]})


@pytest.mark.parametrize("number", [10**60, -(2**70), 2**53, 1e200, float("nan"), True, "1"])
def test_numbers_that_cannot_be_plotted_are_refused(number):
    panel = Panel("a", "x", "y", [Series("one", [1, 2], [3.0, 4.0])])
    for change in ({"x": [1, number]}, {"y": [3.0, number]}):
        body = {"panels": [asdict(panel)]}
        body["panels"][0]["series"][0] |= change
        with pytest.raises(ArgumentError, match="not as golddiff writes them"):
            panels_of(body)
