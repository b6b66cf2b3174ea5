"""Line plots."""

from matplotlib.backends.backend_agg import FigureCanvasAgg

from golddiff.figures.curves import COLOURS, Panel, Series, draw_panels

PANELS = [
    Panel("a", "x", "y", [Series("one", [1, 2, 4], [3.0, None, 5.0]), Series("two", [1], [2])]),
    Panel("b", "x", "y", [Series("two", [1, 10], [2, 3], [1, 2], [3, 4])], "log", "log", True),
]


def test_a_series_has_one_colour_in_all_panels_and_one_legend_entry():
    figure = draw_panels(PANELS)
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
    figure = draw_panels([long, long])
    FigureCanvasAgg(figure).draw()
    for axes in figure.axes:
        box = axes.title.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.width


def test_the_y_axis_starts_at_the_floor_of_its_panel():
    low = Panel("a", "x", "r2", [Series("one", [1, 2], [-50.0, 0.5])], floor=-1.0)
    assert draw_panels([low]).axes[0].get_ylim()[0] == -1
