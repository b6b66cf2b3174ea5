"""``golddiff reproduce``, ``evaluate`` and ``plot`` on the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import golddiff
from golddiff.cli import run
from golddiff_lab.paper import likeness
from golddiff_lab.paper.context import Context
from golddiff_lab.paper.registry import EXPERIMENTS, of_the_paper


@pytest.fixture(autouse=True)
def _temporary_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GOLDDIFF_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def fails(fails):
    """fails(*arguments): the error line without ``golddiff: `` and ``--``."""
    return lambda *arguments: (
        fails(*map(str, arguments)).removeprefix("golddiff: ").removeprefix("--")
    )


@pytest.fixture
def mnist(tiny):
    root, stores, _ = tiny
    return ["--data", f"mnist={stores['mnist']}", "--oracle", f"mnist={root / 'mnist'}.pt"]


QUICK = ["--quick", "--n", "2"]


def test_the_list_names_every_experiment(capsys):
    assert run(["reproduce", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(EXPERIMENTS)


@pytest.mark.usefixtures("stand_in_networks")
def test_a_second_run_computes_nothing(mnist, monkeypatch):
    assert run(["reproduce", "wss", *mnist, *QUICK]) == 0
    first = Path("results/wss.md").read_bytes()

    def refuse_to_compute(*arguments, **options):
        raise AssertionError("computed again")

    monkeypatch.setattr(likeness, "compare", refuse_to_compute)
    assert run(["reproduce", "wss", *mnist, *QUICK]) == 0
    assert Path("results/wss.md").read_bytes() == first


@pytest.mark.usefixtures("stand_in_networks")
def test_a_trial_run_replaces_no_result(mnist, fails):
    assert run(["reproduce", "wss", *mnist, *QUICK]) == 0
    record = Path("results/wss.json")
    record.write_text(record.read_text().replace('"quick": true', '"quick": false'))
    before = record.read_bytes()
    assert "has the result of wss" in fails("reproduce", "wss", *mnist, *QUICK)
    assert record.read_bytes() == before
    record.write_text("{")  # damaged: it may have been a result
    assert "has the result of wss" in fails("reproduce", "wss", *mnist, *QUICK)


@pytest.mark.usefixtures("stand_in_networks")
def test_an_interrupt_loses_one_cell_at_most(mnist, monkeypatch, capsys):
    compare, results = likeness.compare, []

    def interrupted(*arguments, **options):
        if len(results) == 1:
            raise KeyboardInterrupt
        results.append(compare(*arguments, **options))
        return results[-1]

    monkeypatch.setattr(likeness, "compare", interrupted)
    assert run(["reproduce", "wss", *mnist, *QUICK]) == 130
    assert len(list(Path("results/cells").iterdir())) == 1
    assert not Path("results/wss.md").exists()
    capsys.readouterr()
    monkeypatch.setattr(likeness, "compare", compare)
    assert run(["reproduce", "wss", *mnist, *QUICK]) == 0
    output = capsys.readouterr().out
    assert "GoldDiff + SS" in output
    assert "GoldDiff + WSS, 2 images" not in output  # it was cached


@pytest.mark.usefixtures("stand_in_networks")
def test_other_data_of_the_same_name_is_computed_again(tiny, mnist):
    assert run(["reproduce", "wss", *mnist, *QUICK]) == 0
    root, stores, _ = tiny
    first = golddiff.ImageStore.open(stores["mnist"])
    pixels = np.asarray(first.flat).reshape(-1, 1, 6, 6).copy()
    pixels[0] += 1
    golddiff.ImageStore.build(pixels, "other.store")
    other = ["--data", "mnist=other.store", "--oracle", f"mnist={root / 'mnist'}.pt"]
    count = len(list(Path("results/cells").iterdir()))
    assert run(["reproduce", "wss", *other, *QUICK]) == 0
    assert len(list(Path("results/cells").iterdir())) == 2 * count


def test_a_page_without_data_or_oracle_is_still_written(tiny):
    assert run(["reproduce", "mnist", "--data", f"mnist={tiny[1]['mnist']}"]) == 0
    text = Path("results/mnist.md").read_text()
    assert text.count("no oracle here") == 6
    assert text.count("no data here") == 6
    assert run(["reproduce", "tench"]) == 0
    assert "No data here" in Path("results/tench.md").read_text()
    golddiff.ImageStore.build(np.zeros((3, 1, 6, 6), np.uint8), "plain.store")  # without labels
    data = "imagenet64-100=plain.store"
    assert run(["reproduce", "tench", "--data", data]) == 0
    assert "no images of class 0 here" in Path("results/tench.md").read_text()


def test_another_seed_draws_other_images_for_kamb(tiny, tmp_path):
    parts = {}
    for seed in (0, 1, 0):
        context = Context(out=tmp_path, seed=seed, data={"mnist": str(tiny[1]["mnist"])})
        part = context.part("mnist", context.store("mnist"), 5)
        assert parts.setdefault(seed, part.images().tolist()) == part.images().tolist()
    assert parts[0] != parts[1]


def test_the_report_includes_the_editors_notes(all_pages):
    notes = Path("docs/results.notes.md")
    notes.parent.mkdir()
    notes.write_text("For editors.\n\n## introduction\n\nHello.\n\n## mnist\n\nDigits are easy.\n")
    for _ in range(2):
        assert run(["reproduce", "--report", "docs/results.md", "--out", str(all_pages)]) == 0
        text = Path("docs/results.md").read_text()
        assert text.startswith("# Results\n")
        assert text.count("Hello.") == text.count("Digits are easy.") == 1
        assert "For editors" not in text
        part = text[text.index("## MNIST and") :]
        assert 0 < part.index("Digits are easy.") < part.index("### MNIST")
    for name in of_the_paper():
        assert f"](results/{name}.png)" in text
        assert Path(f"docs/results/{name}.png").is_file()
    assert text.count("with 95% intervals") == 1


def test_the_report_prints_a_repeated_note_once_and_every_table(tmp_path):
    note, head, rule = "A note. " * 20, f"| {'Method':150} |", f"| {'-' * 150} |"
    for name in ("main", "mnist"):
        (tmp_path / f"{name}.md").write_text(f"## {name}\n\n{note}\n\n{head}\n{rule}\n| PCA |\n")
    assert run(["reproduce", "--report", "page.md", "--out", str(tmp_path)]) == 0
    lines = Path("page.md").read_text().splitlines()
    assert lines.count(note) == 1
    assert lines.count("| Method |") == lines.count("| --- |") == 2


def test_the_report_says_of_every_table_that_its_data_stand_above(tmp_path):
    about = f"9 images (checksum 0123456789ab); oracle `net` (checksum {'0' * 120}); seed 0."
    for name in ("main", "mnist"):
        (tmp_path / f"{name}.md").write_text(f"## {name}\n\n{about}\n\n| Method |\n")
    assert run(["reproduce", "--report", "page.md", "--out", str(tmp_path)]) == 0
    text = Path("page.md").read_text()
    assert text.count(about) == text.count("settings as in the first table of this data set.") == 1


def test_bad_input_to_reproduce_is_refused(fails, tiny):
    _, stores, _ = tiny
    line = fails("reproduce", "tables")
    assert line.startswith("name: got 'tables', expected all or one of ")
    assert all(name in line for name in EXPERIMENTS)
    assert fails("reproduce").startswith("name: got none, expected all or one of moons")
    for option in ("--n", "--batch-size", "--kamb-images", "--most-steps"):
        assert fails("reproduce", "main", option, 0).startswith(f"{option[2:]}: got 0")
    golddiff.ImageStore.build(np.zeros((9, 2), np.float32), "points.store")
    assert fails("reproduce", "main", "--data", "mnist=points.store") == (
        "data: mnist holds points of 2 values, expected images"
    )
    assert fails("reproduce", "main", "--data", "cifar10") == (
        "data: got 'cifar10', expected NAME=PATH"
    )
    assert fails("reproduce", "main", "--data", "cifar=x").startswith(
        "data: got the name 'cifar', expected one of mnist, fashion-mnist, cifar10, "
    )
    assert "oracle: got the name" in fails("reproduce", "main", "--oracle", "net=x")
    twice = ["--data", f"mnist={stores['mnist']}"] * 2
    assert fails("reproduce", "main", *twice) == "data: mnist is given twice"
    assert "oracle: nowhere does not exist" in fails(
        "reproduce", "mnist", "--oracle", "mnist=nowhere"
    )
    assert fails("reproduce", "main", "--threads", "0").startswith("threads: got 0")
    assert "holds no finished experiment" in fails("reproduce", "--report", "r.md", "--out", "x")
    assert fails("reproduce", "--report", "r.html").startswith("report: got r.html")


@pytest.mark.usefixtures("stand_in_networks")
def test_runs_longer_than_most_steps_are_marked_not_run(tiny, all_data_and_oracles, tmp_path):
    limits = ["--most-steps", "10", "--n", "2", "--quick", "--out", str(tmp_path)]
    assert run(["reproduce", "imagenet", *all_data_and_oracles, *limits]) == 0
    text = (tmp_path / "imagenet.md").read_text()
    parts = text.split("### ")[1:]
    stand_in = [part for part in parts if part.startswith("imagenet64-100")]
    assert len(stand_in) == 4
    for part in stand_in:
        assert (", 100 steps" in part.partition("\n")[0]) == ("not run" in part)


@pytest.mark.usefixtures("stand_in_networks")
def test_an_oracle_of_another_image_shape_is_refused(fails, tiny):
    root, stores, _ = tiny
    expected = "oracle: is for images of shape (3, 6, 6), the store's are (1, 6, 6)"
    data = ["--data", f"mnist={stores['mnist']}", "--oracle", f"mnist={root / 'cifar10'}.pt"]
    assert fails("reproduce", "wss", *data, *QUICK) == expected
    assert fails("evaluate", stores["mnist"], "--oracle", f"{root / 'cifar10'}.pt") == expected


def test_networks_of_the_named_experiment_are_loaded_before_any_work_and_no_others(fails, tiny):
    data = [f"--data={name}={path}" for name, path in tiny[1].items()]
    Path("text.pt").write_text("none")
    broken = [*data, "--oracle", "cifar10=text.pt", *QUICK]
    assert fails("reproduce", "wss", *broken).startswith("text.pt is no network")
    assert not Path("results/cells").exists()
    assert run(["reproduce", "mnist", *broken]) == 0


def test_notes_on_an_unknown_experiment_are_an_error(fails, all_pages):
    Path("r.notes.md").write_text("## figure-9\n\nNice.\n")
    line = fails("reproduce", "--report", "r.md", "--out", all_pages)
    assert "r.notes.md has remarks for 'figure-9', expected introduction or one of" in line


# evaluate


@pytest.mark.usefixtures("stand_in_networks")
def test_evaluate_reports_every_method_and_their_differences(tiny, capsys):
    root, stores, _ = tiny
    options = ["--n", "3", "--steps", "3", "--method", "pca", "--method", "golddiff-pca"]
    sizes = ["--k-min", "5", "--mask-threshold", "0.1", "--labels", "0,1", "--seed", "7"]
    command = ["evaluate", stores["mnist"], "--oracle", f"{root / 'mnist'}.pt", *options, *sizes]
    assert run([*map(str, command), "--json", "e.json", "--out", "e"]) == 0
    output = capsys.readouterr().out
    assert "golddiff-pca less pca, image by image: MSE " in output
    written = json.loads(Path("e.json").read_text())
    assert written == json.loads(Path("e/evaluation.json").read_text())
    assert written["methods"]["pca"]["settings"] == {"mask_threshold": 0.1}
    assert written["methods"]["golddiff-pca"]["settings"] == {"mask_threshold": 0.1, "k_min": 5}
    assert written["methods"]["pca"]["labels"] == [0, 1, 0]
    store = golddiff.ImageStore.open(stores["mnist"])
    oracle = golddiff.load_oracle(root / "mnist.pt")
    expected = golddiff.evaluate(
        golddiff.PCA(store, 0.1), oracle, n=3, steps=3, seed=7, labels=[0, 1, 0]
    )
    assert written["methods"]["pca"]["mse"]["mean"] == pytest.approx(expected.mse.mean, rel=1e-6)
    assert f"{expected.mse.mean:.4f}" in output
    for name in ("curves", "images"):
        with Image.open(f"e/{name}.png") as picture:
            assert picture.width > 500


def test_bad_input_to_evaluate_is_refused(fails, tiny):
    root, stores, _ = tiny
    start = ["evaluate", stores["mnist"], "--oracle", f"{root / 'mnist'}.pt"]
    assert fails(*start, "--method", "best").startswith("method: got 'best', expected one of")
    assert fails(*start, "--method", "pca", "--method", "pca") == "method: got pca twice"
    assert "k-min: does not apply to method pca" in fails(
        *start, "--method", "pca", "--method", "wiener", "--k-min", "3"
    )
    both = ("--method", "pca", "--method", "kamb", "--patch-size", "3", "--tol", "0.1")
    assert "tol: does not apply to method pca" in fails(*start, *both)
    assert fails(*start, "--sampler", "euler").startswith("sampler: got 'euler'")
    assert "oracle: none.pt does not exist" in fails(
        "evaluate", stores["mnist"], "--oracle", "none.pt"
    )
    assert "store: nowhere does not exist" in fails("evaluate", "nowhere", "--oracle", "none.pt")


# plot


def test_plot_draws_the_same_picture_again(all_pages):
    assert run(["plot", str(all_pages / "theorem1.json"), "--out", "again.png"]) == 0
    with Image.open("again.png") as redrawn, Image.open(all_pages / "theorem1.png") as first:
        np.testing.assert_array_equal(np.asarray(redrawn), np.asarray(first))


def test_plot_draws_the_json_file_of_sample():
    command = ["sample", "--method", "wiener", "--n", "2", "--steps", "3", "--json", "run.json"]
    assert run(command) == 0
    assert run(["plot", "run.json", "--title", "Wiener"]) == 0
    with Image.open("run.plot.png") as picture:
        assert picture.width > 500


def test_bad_input_to_plot_is_refused(fails, all_pages):
    assert "cannot be read" in fails("plot", "none.json")
    Path("text.json").write_text("no json")
    assert fails("plot", "text.json") == "paths: text.json is not JSON"
    Path("empty.json").write_text("{}")
    assert "has no line plots" in fails("plot", "empty.json")
    for text in (
        '{"panels": [{"title": "x"}]}',
        '{"levels": [{"sigma": 1.0, "sides": {"a": {}}}]}',
    ):
        Path("odd.json").write_text(text)
        assert fails("plot", "odd.json") == (
            "paths: odd.json: its figures are not as golddiff writes them"
        )
    assert "out: got 2 JSON files, expected one" in fails(
        "plot", "a.json", "b.json", "--out", "c.png"
    )
