"""What ``python -m reliability.sessions`` counts; tests/studio sends its hostile requests."""

from reliability.sessions import Load


def test_unexpected_outcomes_are_failures():
    load = Load(0, 1, 0.5, 0)
    load.outcomes.update({
        ("generate", "done"): 3, ("generate", "told"): 1, ("stray_path", "HTTP 404"): 2,
        ("stray_path", "HTTP 500"): 1, ("large_upload", "HTTP 503"): 1,
        ("postscript", "no answer (TimeoutError)"): 1,
    })  # fmt: skip
    assert load.failures() == {
        "generate: told": 1, "stray_path: HTTP 500": 1, "postscript: no answer (TimeoutError)": 1,
    }  # fmt: skip
