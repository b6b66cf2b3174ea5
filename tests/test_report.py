"""The explain report is one self-contained page."""

import base64
import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image

from golddiff import PCA, GoldDiff, Kamb, Optimal, sample, write_report
from golddiff.system.errors import ArgumentError


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(150, (3, 8, 8)), torch.arange(150) % 3)


class Page(HTMLParser):
    """Checks that tags are balanced; collects tags and addresses."""

    EMPTY = frozenset({"meta", "img", "br"})

    def __init__(self, text):
        super().__init__()
        self.open, self.addresses, self.tags = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [v for k, v in attributes if k in ("src", "href", "xlink:href", "action")]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def pictures(self):
        return [
            Image.open(io.BytesIO(base64.b64decode(address.split(",")[1])))
            for address in self.addresses
        ]


def write(store, denoiser, path, n=3, **arguments):
    run = sample(denoiser, n, attribution=True)
    return write_report(run, denoiser, path, **arguments), path.read_text("utf-8")


@pytest.mark.parametrize("make", [Optimal, PCA, lambda s: Kamb(s, 3), lambda s: GoldDiff(PCA(s))])
def test_a_report_is_one_page_without_links_or_scripts(store, make, tmp_path):
    error, text = write(store, make(store), tmp_path / "new folder" / "report.html")
    page = Page(text)
    assert page.addresses
    assert all(a.startswith("data:image/png;base64,") for a in page.addresses)
    assert not re.search(r"https?:|@import|url\(|<script|<link", text)
    assert "$" not in text
    assert page.tags.count("article") == 3
    assert error < 1e-4
    assert f"difference in this run is {error:.2g}" in text
    assert "<b>pass</b> (tolerance 0.0001)" in text
    assert [p.name for p in (tmp_path / "new folder").iterdir()] == ["report.html"]


def test_a_report_begins_with_output_patchwork_nearest_and_sources(store, tmp_path):
    _, text = write(store, Optimal(store), tmp_path / "r.html", n=1, settings={"seed": 0})
    *pictures, _plot = map(np.asarray, Page(text).pictures())
    run = sample(Optimal(store), 1)
    output = ((run.images[0].clamp(-1, 1) + 1) * 127.5).round().byte().permute(1, 2, 0).numpy()
    assert np.array_equal(pictures[0], output)
    rows, distances = run.novelty.nearest.tolist(), run.novelty.distances[:, 0]
    nearest = store.flat[rows[0]].reshape(3, 8, 8).transpose(1, 2, 0)
    assert np.array_equal(pictures[2], nearest)
    assert len(pictures) == 3 + 1
    # Optimal returns the nearest training image, so all of the picture comes from it.
    assert (
        f"#{rows[0]} (class {rows[0] % 3}): distance {distances[0]:.4f}, novelty 0.00, a copy"
        in text
    )
    assert f"<b>100%</b> #{rows[0]}" in text
    assert (pictures[1] == pictures[1][0, 0]).all()
    assert "<dt>seed</dt><dd>0</dd>" in text


def test_the_report_says_fail_if_the_weights_do_not_give_the_output(store, tmp_path):
    denoiser = Optimal(store)
    run = sample(denoiser, 2, attribution=True)
    error = write_report(replace(run, images=run.images + 0.01), denoiser, tmp_path / "r.html")
    assert error == pytest.approx(0.01, rel=1e-2)
    assert "<b>FAIL</b>" in (tmp_path / "r.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("moved", "rounding", "verdict"),
    [
        (0.004, 0.005, "pass</b> (tolerance 0.005, more where float32 leaves"),
        (0.5, 0.005, "FAIL</b> (tolerance 0.005, "),
        (0.5, 0.91, "undecided</b> (tolerance 0.01, more where"),
        (1.0, 0.91, "FAIL</b> (tolerance 0.01, "),
    ],
)
def test_the_report_says_pass_only_where_the_tolerance_that_it_prints_is_small(
    store, moved, rounding, verdict, tmp_path
):
    run = sample(Optimal(store), 2, attribution=True)
    uncertain = [replace(sources, rounding=rounding) for sources in run.attribution]
    forged = replace(run, images=run.images + moved, attribution=uncertain)
    write_report(forged, Optimal(store), tmp_path / "r.html")
    assert f"<b>{verdict}" in (tmp_path / "r.html").read_text("utf-8")


def test_outputs_of_heun_outside_the_range_of_pixels_are_not_clipped_for_the_check(store, tmp_path):
    denoiser = Optimal(store)
    run = sample(denoiser, 2, sampler="heun", attribution=True)
    beyond = [replace(sources, total=2 * sources.total) for sources in run.attribution]
    doubled = replace(run, images=2 * run.images, attribution=beyond)
    assert doubled.images.abs().max() > 1.1
    assert write_report(doubled, denoiser, tmp_path / "r.html") < 1e-4


def test_a_report_by_another_denoiser_is_refused(store, tmp_path):
    run = sample(Optimal(store), 1, attribution=True)
    with pytest.raises(ArgumentError, match=r"denoiser: got PCA\(.* did not generate <Samples"):
        write_report(run, PCA(store), tmp_path / "r.html")


def test_images_without_weight_are_not_listed(store, tmp_path):
    _, text = write(store, GoldDiff(Optimal(store)), tmp_path / "r.html", n=1)
    assert text.count("main source of") == 1
    assert "1 image below, with 100% of the weight. " in text
    assert ">0%" not in text


def test_class_names_and_settings_are_escaped(make_store, smooth_images, tmp_path):
    store = make_store(smooth_images(20), torch.zeros(20, dtype=torch.int64))
    store.class_names = ["<b>cats</b> & co"]
    _, text = write(store, Optimal(store), tmp_path / "r.html", settings={"labels": "<i>"})
    assert "&lt;b&gt;cats&lt;/b&gt; &amp; co" in text
    assert "<dd>&lt;i&gt;</dd>" in text


def test_latents_are_shown_as_decoded_images(make_store, tmp_path):
    store = make_store(torch.randn(30, 4, 4, 4, generator=torch.Generator().manual_seed(0)))

    def to_images(latents):
        return latents[:, :3].repeat_interleave(2, -1).repeat_interleave(2, -2)

    _, text = write(store, GoldDiff(Optimal(store)), tmp_path / "r.html", to_images=to_images)
    assert Page(text).pictures()[0].size == (8, 8)
    _, text = write(store, Optimal(store), tmp_path / "plain.html")
    Page(text)


def test_invalid_arguments_are_named_and_no_file_is_written(store, make_store, tmp_path):
    denoiser = Optimal(store)
    points = Optimal(make_store(torch.randn(9, 2)))
    run = sample(denoiser, 1, attribution=True)
    (tmp_path / "folder.html").mkdir()
    for call, message in [
        (lambda p: write_report(sample(denoiser, 1), denoiser, p), "attribution=True"),
        (lambda p: write_report(sample(points, 1, attribution=True), points, p), "got points"),
        (lambda p: write_report(run, denoiser, p.with_suffix(".png")), "path: got .*r.png"),
        (lambda p: write_report(run, denoiser, tmp_path / "folder.html"), "is a folder"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            call(tmp_path / "r.html")
    assert [p.name for p in tmp_path.iterdir()] == ["folder.html"]
