"""Modules that are programs: bad input is one line, told before any work."""

import pytest

from golddiff_lab import flow_matching, mmse, promise, restoring
from golddiff_lab.programs import program


@pytest.fixture(autouse=True)
def _nothing_runs(monkeypatch):
    for module in (flow_matching, mmse, restoring):
        monkeypatch.setattr(module, "compared", None)
        monkeypatch.setattr(module, "check_deepinv", lambda: None, raising=False)
    monkeypatch.setattr(promise, "levels_of", None)


@pytest.mark.parametrize(
    ("module", "arguments", "words"),
    [
        (mmse, ["nowhere"], "store: nowhere does not exist"),
        (mmse, ["{store}", "--batch", "0"], "'--batch': "),
        (mmse, ["{store}", "--json", "{folder}"], "--json: "),
        (flow_matching, ["{store}"], "store: holds 8 x 8 grey, expected images of 20 x 20"),
        (flow_matching, ["{store}", "--out", "x.txt"], "--out: got x.txt"),
        (restoring, ["{store}", "{others}"], "store: holds 8 x 8 grey, expected images of 12 x 12"),
        (restoring, ["{others}", "{store}"], "others: got 5 of 8 x 8 grey, expected 64 or more"),
        (promise, ["{store}", "--tols", "0.1,x"], "--tols: got '0.1,x'"),
        (promise, ["{store}", "--tols", "nan"], "tol: got nan"),
        (promise, ["{store}", "--each", "0"], "'--each': "),
        (promise, ["{store}", "--seed", "-1"], "--seed: got -1"),
        (promise, ["{store}", "--others", "{others}"], "--others: got 5 of 16 x 16 RGB, expected"),
    ],
)
def test_bad_input_is_one_line(
    module, arguments, words, make_store, smooth_images, tmp_path, capsys
):
    stores = {
        "store": make_store(smooth_images(5, (1, 8, 8))).path,
        "others": make_store(smooth_images(5, (3, 16, 16))).path,
        "folder": tmp_path,
    }
    given = [text.format(**stores) for text in arguments]
    assert program("it", module.main, given) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
