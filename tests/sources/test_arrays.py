import numpy as np
import pytest
import torch

from golddiff.sources import open_source
from golddiff.system.errors import ArgumentError, SourceError

from .make import read

NOISE = np.random.default_rng(0)


def random_bytes(*shape):
    return NOISE.integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("batch", [1, 4, 7, 100])
def test_uint8_images_are_unchanged(make, batch):
    images = random_bytes(7, 3, 5, 6)
    source = open_source(make(images))
    assert source.info.shape == (3, 5, 6)
    assert source.total == 7
    assert not source.info.labelled
    assert np.array_equal(read(source, batch)[0], images)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_floats_become_float32_and_keep_their_values(dtype):
    images = (7 * torch.randn(5, 4, 2, 2)).to(dtype)
    source = open_source(images)
    assert source.info.dtype == np.float32
    assert np.array_equal(read(source)[0], images.float().numpy())


def test_a_tensor_that_requires_gradients_can_be_read():
    images = torch.randn(4, 1, 2, 2, requires_grad=True)
    assert np.array_equal(read(open_source(images))[0], images.detach().numpy())


@pytest.mark.parametrize(
    "tensor", [torch.eye(3).to_sparse(), torch.empty(2, 3, device="meta")], ids=["sparse", "meta"]
)
def test_a_tensor_without_dense_values_is_refused(tensor):
    with pytest.raises(SourceError, match="tensor"):
        open_source(tensor)


def test_images_without_a_channel_axis_are_grey():
    images = random_bytes(4, 5, 6)
    source = open_source(images)
    assert source.info.shape == (1, 5, 6)
    assert np.array_equal(read(source)[0], images[:, None])


@pytest.mark.parametrize("channels", [1, 3])
def test_trailing_channels_move_first(channels):
    images = random_bytes(4, 8, 9, channels)
    source = open_source(images)
    assert source.info.shape == (channels, 8, 9)
    assert np.array_equal(read(source)[0], images.transpose(0, 3, 1, 2))


def test_an_ambiguous_first_axis_is_read_as_channels():
    assert open_source(random_bytes(2, 3, 8, 3)).info.shape == (3, 8, 3)
    assert open_source(random_bytes(2, 2, 4, 4)).info.shape == (2, 4, 4)


def test_a_trailing_alpha_channel_is_composited_on_white():
    images = np.zeros((2, 8, 9, 4), np.uint8)
    images[1, ..., 3] = 255
    values, _ = read(open_source(images))
    assert values.shape == (2, 3, 8, 9)
    assert (values[0] == 255).all()
    assert (values[1] == 0).all()


def test_two_dimensional_arrays_are_points():
    points = NOISE.normal(size=(10, 2))
    source = open_source(points)
    assert source.info.shape == (2,)
    assert np.array_equal(read(source, 4)[0], points.astype(np.float32))


@pytest.mark.parametrize("channels", [1, 3])
def test_trailing_float_channels_move_first(channels):
    first = np.random.default_rng(0).uniform(-1, 1, (5, channels, 8, 9)).astype(np.float32)
    last = open_source(first.transpose(0, 2, 3, 1))
    assert last.info.shape == (channels, 8, 9)
    np.testing.assert_array_equal(last.pixels(0, 5), first)


@pytest.mark.parametrize("channels", [2, 4, 7])
def test_squares_of_other_trailing_channels_are_refused(channels):
    images = np.random.default_rng(0).standard_normal((2, 8, 8, channels))
    with pytest.raises(SourceError, match="looks like channels last"):
        open_source(images)
    assert open_source(images.transpose(0, 3, 1, 2)).info.shape == (channels, 8, 8)


@pytest.mark.parametrize("shape", [(9, 4, 4), (9, 5)])
def test_masks_of_0_and_1_are_refused(shape):
    masks = np.zeros(shape, np.uint8)
    assert read(open_source(masks))[0].max() == 0
    masks[8, 2] = 1
    with pytest.raises(ArgumentError, match=r"array: holds 0 and 1 only, .* multiplied by 255"):
        open_source(masks)
    assert read(open_source(masks * 255))[0].max() == 255


def test_the_last_axis_of_small_images_is_no_channel():
    assert open_source(np.zeros((5, 4, 7, 4), np.uint8)).info.shape == (4, 7, 4)


@pytest.mark.parametrize("dtype", [bool, np.int64, np.uint16, np.complex64, object])
def test_other_data_types_are_refused_by_name(dtype):
    with pytest.raises(SourceError, match=np.dtype(dtype).name):
        open_source(np.zeros((2, 3, 4, 4), dtype))


@pytest.mark.parametrize("least", [273.15, 1e8])
def test_a_range_far_from_0_costs_no_digits(least):
    images = least + 2 * np.random.default_rng(0).random((20, 1, 8, 8))
    values = read(open_source(images, value_range=(least, least + 2)))[0]
    assert np.abs(values - (images - least - 1)).max() < 1e-6


@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.int64])
def test_whole_numbers_are_read_if_their_range_is_given(dtype):
    images = np.array([[0, 1024], [2048, 4096]], dtype).reshape(1, 1, 2, 2)
    with pytest.raises(SourceError, match=r"their range, such as value_range=\(0, 65535\)"):
        open_source(images)
    source = open_source(images, value_range=(0, 4096))
    assert source.info.is_pixels
    assert read(source)[0].ravel().tolist() == [-1, -0.5, 0, 1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_non_finite_value_is_refused_with_its_example(bad):
    images = np.zeros((9, 3, 4, 4), np.float32)
    images[7, 1, 2, 3] = bad
    with pytest.raises(SourceError, match="example 7"):
        read(open_source(images))


def test_a_float64_too_large_for_float32_is_refused():
    with pytest.raises(SourceError, match="infinity"):
        read(open_source(np.full((1, 2), 1e300)))


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (4,), (), (2, 3, 0, 4), (2, 3, 4, 5, 6)])
def test_unsupported_shapes_are_refused(shape):
    with pytest.raises(SourceError, match="shape"):
        open_source(np.zeros(shape, np.uint8))


@pytest.mark.parametrize("source", [None, 3, [[1, 2]], b"photos", {"a": 1}, [b"x"]])
def test_objects_that_are_no_source_are_refused_by_type(source):
    with pytest.raises(ArgumentError, match=type(source).__name__):
        open_source(source)


def test_size_and_channels_apply_to_uint8_images():
    images = np.full((5, 3, 12, 20), 90, np.uint8)
    source = open_source(images, size=6, channels=1)
    values, _ = read(source)
    assert values.shape == (5, 1, 6, 6)
    assert (values == 90).all()


def test_resized_arrays_keep_their_order():
    images = np.arange(50, dtype=np.uint8)[:, None, None, None] * np.ones((1, 3, 8, 8), np.uint8)
    values, labels = read(open_source(images, size=4, labels=np.arange(50)), 7)
    assert np.array_equal(values[:, 0, 0, 0], labels)


def test_five_channels_are_resized_independently():
    images = np.arange(5, dtype=np.uint8)[None, :, None, None] * np.ones((2, 1, 8, 8), np.uint8)
    source = open_source(images, size=4)
    assert source.info.shape == (5, 4, 4)
    assert np.array_equal(read(source)[0][0, :, 2, 2], np.arange(5))


def test_channels_option_is_refused_for_five_channels():
    with pytest.raises(ArgumentError, match="5 channels"):
        open_source(random_bytes(2, 5, 8, 8), channels=3)


def test_floats_of_the_given_size_and_channels_are_accepted():
    images = np.linspace(-1, 1, 3 * 3 * 8 * 8).reshape(3, 3, 8, 8)
    source = open_source(images, size=8, channels=3)
    assert np.array_equal(read(source)[0], images.astype(np.float32))


@pytest.mark.parametrize("option", [{"size": 4}, {"channels": 1}])
@pytest.mark.parametrize(
    ("shape", "message"),
    [((2, 3, 8, 8), r"got float images \(3, 8, 8\), expected"), ((2, 8), "do not apply to points")],
)
def test_size_and_channels_do_not_apply_to_floats(option, shape, message):
    with pytest.raises(ArgumentError, match=message):
        open_source(np.zeros(shape, np.float32), **option)


def test_batches_do_not_share_memory_with_the_array():
    images = random_bytes(4, 3, 4, 4)
    original = images.copy()
    for batch in open_source(images).batches(2):
        batch.pixels[:] = 0
    assert np.array_equal(images, original)


def test_arrays_with_negative_strides_keep_their_order():
    images = random_bytes(6, 3, 4, 5)[::-2, :, ::-1]
    assert np.array_equal(read(open_source(images))[0], images)
