"""Searches for the nearest images: exact ones are exact, and recall is what it says."""

import json
import sys
import types

import numpy as np
import pytest

from golddiff.cli import run
from golddiff.supports.index import Index
from golddiff.system.errors import ArgumentError
from golddiff_lab.search.race import Found, SearchJob, race, recall, table
from golddiff_lab.search.strategies import (
    Coordinates,
    checked,
    linear,
    nearest_exactly,
    of_faiss,
    through_index,
)


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(300))


@pytest.fixture(scope="module")
def x(store):
    generator = np.random.default_rng(0)
    values = store.values(np.arange(5))
    return values + generator.standard_normal(values.shape, np.float32)


def test_the_exact_nearest_are_those_of_all_distances(store, x):
    coordinates = Coordinates.of(store)
    z = (store.values(np.arange(300)) - coordinates.mean) @ coordinates.basis
    q = (x - coordinates.mean) @ coordinates.basis
    distances = ((q[:, None].astype(float) - z[None]) ** 2).sum(axis=2)
    direct = np.sort(np.argsort(distances, axis=1)[:, :20], axis=1)
    assert np.array_equal(np.sort(nearest_exactly(coordinates, x, 20), axis=1), direct)


@pytest.mark.parametrize("k", [1, 20, 300])
def test_linear_ranking_finds_them_all(store, x, k):
    coordinates = Coordinates.of(store)
    rows = linear(coordinates).search(store, x, 1.0, k)
    assert rows.shape == (5, k)
    assert recall(rows, nearest_exactly(coordinates, x, k)) == 1.0


def test_the_index_takes_part_where_there_is_one(make_store, smooth_images, x):
    store = make_store(smooth_images(300))
    coordinates = Coordinates.of(store)
    assert through_index(store) is None
    Index.build(store)
    rows = through_index(store).search(store, x, 1.0, 20)
    assert rows.shape == (5, 20)
    # All are compared, by a sixteenth of their numbers, where the others see all of an image.
    assert recall(rows, nearest_exactly(coordinates, x, 20)) > 0.3


def test_faiss_finds_them_all_where_it_looks_everywhere(store, x):
    pytest.importorskip("faiss")
    coordinates = Coordinates.of(store)
    exact = nearest_exactly(coordinates, x, 20)
    flat, few, every = of_faiss(coordinates, 12, (1, 12), threads=1)
    found = [recall(s.search(store, x, 1.0, 20), exact) for s in (flat, few, every)]
    assert found[0] == found[2] == 1.0
    assert found[1] < 1.0


def test_recall_is_the_share_that_was_found():
    exact = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    assert recall(exact[:, ::-1], exact) == 1.0
    assert recall(np.array([[1, 2, -1, -1], [9, 9, 9, 9]]), exact) == 0.25


@pytest.mark.parametrize(
    "rows", [np.zeros((5, 3), int), np.zeros((5, 2)), np.full((5, 2), 300), np.full((5, 2), -2)]
)
def test_what_is_no_rows(rows):
    with pytest.raises(ArgumentError, match="search: mine returned"):
        checked(rows, 5, 2, 300, "mine")


def test_times_are_shown_beside_the_first_one_s():
    found = [Found("a", 1.0, 5, 0.004, 1.0, 100), Found("b", 1.0, 5, 0.002, 0.5, None)]
    cells = [list(column.cells) for column in table(found).columns]
    assert cells[3:6] == [["4.00", "2.00"], ["1.00", "2.00"], ["1.000", "0.500"]]


def test_a_search_of_one_s_own_takes_part(store, monkeypatch):
    module = types.ModuleType("searches_for_test")
    module.first = lambda store, x, sigma, k: np.tile(np.arange(k), (len(x), 1))
    monkeypatch.setitem(sys.modules, "searches_for_test", module)
    job = SearchJob(
        store.path, (30, 300), (1.0,), ("searches_for_test:first",), faiss=False, repeats=1
    )
    found = race(job)
    assert [(row.strategy, row.k) for row in found] == [
        ("linear (ours)", 30), ("searches_for_test:first", 30),
        ("linear (ours)", 300), ("searches_for_test:first", 300),
    ]  # fmt: skip
    assert found[1].recall < 0.9
    assert found[3].recall == 1.0
    assert min(row.seconds for row in found) > 0


def test_the_command(store, tmp_path, capsys):
    out = tmp_path / "index.json"
    code = run(
        ["bench", "index", str(store.path), "--k", "10,50", "--levels", "1", "--no-faiss",
         "--batch", "4", "--json", str(out)]
    )  # fmt: skip
    assert code == 0
    assert "linear (ours)" in capsys.readouterr().out
    assert [row["recall"] for row in json.loads(out.read_text())["rows"]] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--k", "0"], "k: got"),
        (["--k", "2.5"], "whole numbers"),
        (["--k", "301", "--no-faiss"], "k: got 301, but the store has only 300"),
        (["--levels", "-1"], "levels: got"),
        (["--batch", "0"], "batch-size: got 0"),
        (["--queries-from", "x"], "queries-from: got"),
        (["--search", "nowhere:search", "--k", "5"], "search: got 'nowhere:search'"),
        (["--search", "math:pi", "--k", "5"], "which is no function"),
        (["--search", "", "--k", "5"], "search: got ''"),
    ],
)
def test_bad_input_is_one_line(store, capsys, arguments, said):
    assert run(["bench", "index", str(store.path), *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1
