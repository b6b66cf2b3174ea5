from golddiff_lab.figures.losses import draw_losses


def test_curve_and_the_mean_of_the_last_tenth():
    points = [(25 * i, 1 / i) for i in range(1, 41)]
    axes = draw_losses(points, "title").axes[0]
    raw, mean = axes.lines
    assert raw.get_xydata().tolist() == [list(map(float, p)) for p in points]
    assert mean.get_ydata()[:10].tolist() == [loss for _, loss in points[:10]]
    assert mean.get_ydata()[-1] == sum(1 / i for i in range(37, 41)) / 4


def test_no_losses_give_an_empty_picture():
    assert list(draw_losses([]).axes[0].lines) == []
