"""Every table and figure, on tiny data with stand-in networks."""

import json
from importlib import resources

import numpy as np
import pytest
import torch
from PIL import Image

import golddiff
from golddiff.evaluation.interval import mean_interval
from golddiff_lab.paper.datasets import DATA_SETS
from golddiff_lab.paper.likeness import packed, unpacked
from golddiff_lab.paper.paper import paper_value
from golddiff_lab.paper.registry import EXPERIMENTS, of_the_paper
from golddiff_lab.paper.theorem1 import errors, tail_bound, truncation_bound
from golddiff_lab.paper.weights import RandomSubset
from tests.conftest import float64_images
from tests.test_truncation import truncation_error


def page(folder, name):
    return (folder / f"{name}.md").read_text()


def figures(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


@pytest.mark.parametrize("name", of_the_paper())
def test_every_experiment_writes_a_page_figures_and_a_picture(name, all_pages):
    text = page(all_pages, name)
    assert text.startswith(f"## {EXPERIMENTS[name].title}\n")
    assert "A trial run (`--quick`)" in text
    assert figures(all_pages, name)["name"] == name
    assert figures(all_pages, name)["rows"]
    with Image.open(all_pages / f"{name}.png") as picture:
        assert picture.width > 500
    assert f"]({name}.png)" in text


def test_the_papers_numbers_are_printed_beside_ours(all_pages):
    lines = page(all_pages, "mnist").splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    cells = next(cells for cells in rows if cells[0] == "GoldDiff")
    assert cells[1::2] == ["0.020", "0.713", "0.019", "0.282"]
    ours = next(r for r in figures(all_pages, "mnist")["rows"] if r["row"] == "GoldDiff")
    assert cells[2].startswith(f"{ours['mse']['mean']:.4f} ({ours['mse']['low']:.4f} to")
    assert cells[4].startswith(f"{ours['r2']['mean']:.3f} (")
    assert (ours["n"], ours["steps"], ours["seed"]) == (2, 3, 0)


def test_a_page_prints_the_paired_difference(all_pages):
    rows = {r["row"]: r["per_image"] for r in figures(all_pages, "mnist")["rows"]}
    differences = np.array(rows["GoldDiff"]["mse"]) - rows["PCA"]["mse"]
    difference = mean_interval(differences)
    expected = f"GoldDiff less PCA, image by image: MSE {difference.mean:+.4f} ("
    assert expected in page(all_pages, "mnist")


def test_missing_data_and_checkpoints_are_reported_as_missing(all_pages):
    text = page(all_pages, "main")
    part = text[text.index("### CelebA-HQ") : text.index("### AFHQv2")]
    assert part.count("no data here") == 6
    assert "| PCA | 0.009 | 0.802 | 6.040 | 5.460 | no data here |" in " ".join(part.split())
    assert page(all_pages, "edm").count("no oracle here") == 5
    assert not any(r["column"].startswith("EDM-VE") for r in figures(all_pages, "edm")["rows"])


def test_rows_computed_on_some_of_the_images_state_how_many(all_pages):
    for name in ("main", "orthogonality"):
        rows = [r for r in figures(all_pages, name)["rows"] if r["method"].endswith("kamb")]
        assert rows
        for row in rows:
            assert row["images"] == 20
            assert row["row"].endswith("(20 images)")
            assert f"\n| {row['row']} " in page(all_pages, name)


def test_the_authors_pairing_mixes_samplers_and_the_fair_one_does_not(all_pages):
    rows = figures(all_pages, "edm")["rows"]
    pairs = {(r["column"].partition(", ")[2], r["sampler"], r["oracle_sampler"]) for r in rows}
    assert ("CIFAR-10, the authors' pairing", "ddim", "heun") in pairs
    assert ("CIFAR-10, Heun on both sides", "heun", "heun") in pairs


def test_the_imagenet_subset_keeps_its_name_beside_no_paper_numbers(all_pages):
    rows = figures(all_pages, "imagenet")["rows"]
    assert {r["column"].partition(",")[0] for r in rows} == {"imagenet64-100 (100 classes)"}
    assert all(value is None for r in rows for value in r["paper"].values())
    conditional = [r for r in rows if ", conditional" in r["column"]]
    assert conditional[0]["labels"] == [0, 1]


def test_the_bound_of_theorem_1_always_holds(all_pages):
    rows = figures(all_pages, "theorem1")["rows"]
    assert {r["data"] for r in rows} == {"digits", "mnist", "cifar10", "imagenet64-100"}
    assert all(r["violations"] == 0 and r["checked"] > 0 for r in rows)
    assert "broken 0 times." in page(all_pages, "theorem1")


def test_errors_and_bounds_of_theorem_1_agree_with_float64(make_store, smooth_images):
    store = make_store(smooth_images(30, (1, 4, 4)))
    images = float64_images(store)
    x = images[3] + 0.7
    for sigma in (0.3, 2.0):
        logits = -((x - images) ** 2).sum(1) / (2 * sigma**2)
        ordered = -np.sort(-logits)
        ks = [1, 7, 29, 30]
        rows = errors(store, x.astype(np.float32), sigma, ks)
        for k, (error, tail, bound) in zip(ks, rows, strict=True):
            direct = truncation_error(logits, images, k)
            assert error == pytest.approx(direct, rel=2e-3, abs=1e-6)
            assert tail == pytest.approx(tail_bound(ordered, k, store.radius), rel=1e-2, abs=1e-9)
            assert bound == pytest.approx(
                truncation_bound(ordered, k, store.radius), rel=1e-2, abs=1e-9
            )


def test_the_effective_number_falls_from_all_images_to_few(all_pages):
    (row,) = figures(all_pages, "weights")["rows"]
    whole = row["whole"]["effective"]
    assert whole[0] > 30 > 5 > whole[-1]
    assert row["whole"]["top1"][0] < row["whole"]["top1"][-1] <= 1 + 1e-9


def test_a_larger_random_subset_is_nearer_to_the_full_scan(all_pages):
    (row,) = figures(all_pages, "weights")["rows"]
    assert row["sizes"] == [10, 30]
    assert row["single"][1][0] < row["single"][0][0]


def test_random_subsets_are_nested_and_the_same_at_every_noise_level(make_store, smooth_images):
    store = make_store(smooth_images(20, (1, 4, 4)))
    x = np.zeros((2, 16), np.float32)
    small, large = (RandomSubset(k).supports(store, x, 1.0, None, 0)[0].rows for k in (5, 12))
    at_low_noise = RandomSubset(5).supports(store, x, 0.01, None, 0)[1].rows
    np.testing.assert_array_equal(small, at_low_noise)
    assert set(small) < set(large)
    full = golddiff.GoldDiff(golddiff.Optimal(store), RandomSubset(99))
    noisy = store.images([0, 1]) + 0.1
    torch.testing.assert_close(full(noisy, 0.5), golddiff.Optimal(store)(noisy, 0.5))


@pytest.mark.parametrize("channels", [1, 3])
def test_images_survive_packing_as_text(channels):
    levels = torch.randint(0, 256, (2, channels, 3, 4), generator=torch.Generator().manual_seed(0))
    images = levels / 127.5 - 1
    torch.testing.assert_close(unpacked(packed(images)), images)


# The settings and numbers of the paper's tables


def test_a_data_set_of_which_the_authors_calibrated_patch_sizes_uses_them():
    file = resources.files("golddiff") / "data" / "kamb_patch_sizes.json"
    presets = set(json.loads(file.read_text())["patch_sizes"])
    for name, data in DATA_SETS.items():
        kind = name.replace("-", "_")
        calibrated = {f"{kind}_unet_zeros", f"{kind}{data.side}_unet_zeros"} & presets
        assert {data.kamb} - {None} == calibrated


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (("tab:main_results_1", "CIFAR-10", "GoldDiff", "r2"), "0.683"),
        (("tab:main_results_1", "AFHQ", "Kamb", "Memory"), "7.5471"),
        (("tab:main_comparison_mnist", "Fashion-MNIST", "PCA", "MSE"), "0.015"),
        (("tab:pca_results_large", "conditional, 100 steps", "GoldDiff", "r2"), "0.578"),
        (("tab:pca_results_large", "unconditional, 10 steps", "PCA", "Time"), "110.798"),
        (("tab:more_nn", "EDM-VP, CIFAR-10", "GoldDiff", "MSE"), "0.0195"),
        (("tab:orthogonal", "AFHQ", "Optimal + GoldDiff", "r2"), "-0.270"),
        (("tab:ablation", "CelebA-HQ", "GoldDiff + SS", "MSE"), "0.008"),
        (("tab:complexity_results", "Complexity", "Kamb", "Complexity"), "O(N p_t D^2)"),
        (("tab:ablation", None, "GoldDiff + SS", "MSE"), None),
    ],
)
def test_the_papers_numbers_are_read_as_printed(where, text):
    assert paper_value(*where) == text
