import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

import golddiff
from golddiff.figures.methods import CELL, Block, draw_methods
from golddiff.figures.trajectory import draw_trajectory, thinned
from golddiff.system.errors import ArgumentError
from golddiff.system.files import atomic_write
from golddiff.system.pictures import cells, draw_grid, mosaic, save, to_pixels
from golddiff.system.units import byte_size, duration
from golddiff_lab.figures.concentration import MASS, concentration, draw_concentration


@pytest.fixture(scope="module")
def moons(tmp_path_factory):
    return golddiff.ImageStore.build("moons", tmp_path_factory.mktemp("moons") / "store")


def test_to_pixels_rounds_and_clips():
    images = torch.tensor([-2.0, -1.0, 0.0, 1.0]).reshape(1, 1, 2, 2)
    np.testing.assert_array_equal(to_pixels(images), [[[0, 0], [128, 255]]])


def test_every_pixel_value_survives_storing_and_reading(make_store):
    pixels = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    store = make_store(pixels)
    np.testing.assert_array_equal(to_pixels(store.images()), pixels[:, 0].numpy())


def test_latents_are_drawn_as_one_grey_channel():
    assert to_pixels(torch.randn(2, 4, 8, 8)).shape == (2, 8, 8)


@pytest.mark.parametrize("n", [1, 2, 5, 16, 500])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_grid_shows_the_images_in_reading_order(n, channels):
    images = torch.rand(n, channels, 3, 5) * 2 - 1
    grid = np.asarray(draw_grid(images))
    assert grid.shape[1] >= 512
    columns = int(np.ceil(np.sqrt(n)))
    factor = (grid.shape[1] - 2 * (columns + 1)) // (columns * 5)
    pixels = to_pixels(images)
    for i in (0, n // 2, n - 1):
        top, left = 2 + i // columns * (3 * factor + 2), 2 + i % columns * (5 * factor + 2)
        cell = grid[top : top + 3 * factor : factor, left : left + 5 * factor : factor]
        np.testing.assert_array_equal(cell, pixels[i])


def test_cells_are_enlarged_by_a_whole_factor():
    images = torch.rand(1, 1, 28, 28) * 2 - 1
    large = cells(images, 96)
    assert large.shape == (1, 112, 112, 3)
    np.testing.assert_array_equal(large[:, ::4, ::4, 0], to_pixels(images))


def test_a_mosaic_is_white_where_there_is_no_image():
    picture = mosaic(np.zeros((3, 2, 2), np.uint8), columns=2, gap=1)
    assert picture.shape == (7, 7)
    assert (picture == 0).sum() == 12
    assert (picture[4:6, 4:6] == 255).all()


@pytest.mark.parametrize(("count", "limit"), [(1, 12), (10, 12), (13, 12), (1000, 12)])
def test_thinned_steps_keep_the_first_and_the_last(count, limit):
    steps = thinned(count, limit)
    assert steps[0] == 0
    assert steps[-1] == count - 1
    assert steps == sorted(set(steps))
    assert len(steps) == min(count, limit)


def test_trajectory_columns_are_labelled_with_sigma_and_subset_size():
    rows = [("one", torch.zeros(3, 1, 4, 4)), ("two", torch.zeros(3, 1, 4, 4))]
    figure = draw_trajectory(rows, [60.8, 2.0, 0.01], ["180", "95", "90"], "title")
    (axes,) = figure.axes
    labels = [text.get_text() for text in axes.get_xticklabels()]
    assert labels == ["60.8\n180", "2.0\n95", "0.01\n90"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["one", "two"]


def test_a_long_title_of_a_trajectory_stays_within_the_picture():
    rows = [("", torch.zeros(2, 1, 4, 4))]
    figure = draw_trajectory(rows, [3.0, 0.1], None, 5 * "golddiff-pca over digits, ")
    FigureCanvasAgg(figure).draw()
    box = figure._suptitle.get_window_extent()
    assert 0 <= box.x0 <= box.x1 <= figure.bbox.width


def test_names_that_look_like_broken_formulas_can_be_drawn(tmp_path):
    rows = [(r"$\frac{$", torch.zeros(3, 1, 4, 4))]
    figure = draw_trajectory(rows, [60.8, 2.0, 0.01], None, r"over $\frac{$")
    save("out", figure, tmp_path / "trajectory.png")
    assert (tmp_path / "trajectory.png").stat().st_size > 1000


def test_the_methods_picture_names_each_method_and_its_time(tmp_path):
    images = {name: torch.zeros(2, 1, 4, 4) for name in "AB"}
    seconds = {"A": 0.0123, "B": 1.5}
    figure = draw_methods([Block("set", "a set", torch.randn(2, 1, 4, 4), images, seconds)])
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == ["starting noise", "A\nset 12 ms", "B\nset 1.5 s"]
    save("out", figure, tmp_path / "methods.png")
    assert (tmp_path / "methods.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("name", "sets", "height"),
    [("", 1, 4), ("pictures of my holidays", 1, 4), ("CIFAR-10", 3, 4), ("", 1, 16)],
)
def test_labels_of_any_length_are_whole_and_leave_the_pictures_their_size(name, sets, height):
    images = {method: torch.zeros(5, 1, height, 4) for method in ("GoldDiff (PCA)", "oracle")}
    block = Block(name, name, images["oracle"], images, dict.fromkeys(images, 0.123))
    steps = [("GoldDiff (PCA)", torch.zeros(10, 1, height, 4))]
    methods, trajectory = draw_methods(sets * [block]), draw_trajectory(steps, [1.0] * 10)
    for figure, columns in ((methods, 5), (trajectory, 10)):
        FigureCanvasAgg(figure).draw()
        labels = figure.axes[0].get_yticklabels()
        assert all(label.get_window_extent().x0 >= 0 for label in labels)
        wide = columns * 0.95 * CELL * figure.dpi
        assert all(axes.bbox.width > wide for axes in figure.axes)


def test_the_weights_shown_give_the_denoisers_posterior_mean(moons):
    points = moons.images().numpy().astype(np.float64)
    panels = concentration(moons, 0, (60.0, 1.0, 0.2, 0.05))
    optimal = golddiff.Optimal(moons)
    for panel in panels:
        assert panel.weights.sum() == pytest.approx(1)
        np.testing.assert_allclose(panel.weights @ points, panel.x0, atol=1e-5)
        x0 = optimal(torch.from_numpy(panel.x)[None], panel.sigma)[0].numpy()
        np.testing.assert_allclose(x0, panel.x0, atol=1e-5)


def test_the_support_shown_is_minimal_for_its_mass_and_shrinks_with_sigma(moons):
    schedule = golddiff.PaperSchedule(variant="released")
    panels = concentration(moons, 0, (60.0, 1.0, 0.2, 0.05))
    for panel in panels:
        mass = panel.weights[panel.support]
        assert mass.sum() >= MASS > mass[:-1].sum()
        assert len(panel.golden) == schedule.budgets(panel.sigma, moons.n)[1]
    sizes = [len(panel.support) for panel in panels]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 0.98 * moons.n


def test_the_moons_picture_has_one_column_per_noise_level(moons, tmp_path):
    figure = draw_concentration(moons, levels=(60.0, 0.3, 0.02))
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert sum("of the weight" in title for title in titles) == 3
    save("out", figure, tmp_path / "moons.png")


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "file.txt"

    def interrupted():
        with atomic_write("out", path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(path.parent.iterdir()) == []
    with atomic_write("out", path) as temporary:
        temporary.write_text("whole")
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]
    with (
        pytest.raises(ArgumentError, match=r"out: .* cannot be written"),
        atomic_write("out", path / "x"),
    ):
        pass


def test_times_and_sizes_are_formatted_with_units():
    durations = [duration(s) for s in (3.1e-7, 0.00031, 0.012, 4.2, 200)]
    assert durations == ["0.31 µs", "310 µs", "12 ms", "4.2 s", "3 min 20 s"]
    rounded = [duration(s) for s in (0.9996, 119.7, 3599.7)]
    assert rounded == ["1.0 s", "2 min 0 s", "60 min 0 s"]
    assert byte_size(999_960) == "1.0 MB"
    sizes = [byte_size(b) for b in (1, 5, 999, 1000, 12345, 1234567890)]
    assert sizes == ["1 byte", "5 bytes", "999 bytes", "1.0 kB", "12 kB", "1.2 GB"]
