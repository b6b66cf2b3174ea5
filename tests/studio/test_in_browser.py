"""The studio in a headless browser, which may contact no other host."""

import json
import os
import random
import re
import shutil
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("gradio")

from PIL import Image

import golddiff
from golddiff.studio.inputs import SIDE
from golddiff.studio.library import AT_FIRST
from golddiff.system.memory import process_memory
from golddiff.system.pictures import to_pixels
from reliability.sessions import FORM, HOSTILE, JSON, LIMIT, Page, upload_of
from tests.studio.browser import Browser, wait
from tests.studio.test_inputs import as_url


def generate(window, expected="click a pixel"):
    """Run to the end; return the seconds to the starting noise and to the first step."""
    before = window.picture("#grid img")
    window.js("document.querySelector('#status [role=status]').innerText = ''")
    start = time.monotonic()
    window.click("#generate")
    wait(lambda: window.picture("#grid img") not in (None, before), 20, "the first picture")
    noise = time.monotonic() - start
    wait(lambda: re.search(f"step|{expected}", window.text("#status")), 20, "the first step")
    step = time.monotonic() - start
    wait(lambda: expected in window.text("#status"), 30, "the end of the run")
    return noise, step


def shot(window, name):
    """Save a screenshot if GOLDDIFF_SCREENSHOTS is set."""
    if folder := os.environ.get("GOLDDIFF_SCREENSHOTS"):
        time.sleep(0.6)  # messages slide in
        window.screenshot(Path(folder) / f"{name}.png")


def upload(window, path):
    window.type("input[type=file][data-testid$='upload-button']", str(path))


def open_start(window):
    window.click("#start button")
    wait(lambda: window.js("return document.querySelector('#from') !== null"), 5, "the panel")


def test_generate_click_a_pixel_and_scrub(browser, studio):
    shot(browser, "opened")
    noise, step = generate(browser)
    print(f"cold start {studio.seconds:.1f} s, noise {noise:.2f} s, first step {step:.2f} s")
    assert noise < step
    wait(lambda: browser.picture("#plots img"), 20, "the plots")
    shot(browser, "generated")
    sources, grid = browser.text("#sources"), browser.picture("#grid img")
    plots = browser.picture("#plots img")
    column = 1 + AT_FIRST.index("optimal")  # column 0 is the starting noise
    browser.click_at("#grid img", (column + 0.5) / (1 + len(AT_FIRST)), 0.6)
    wait(lambda: "Optimal, image" in browser.text("#sources"), 5, "the sources of the pixel")
    assert browser.text("#sources") != sources
    wait(lambda: browser.picture("#grid img") not in (None, grid), 5, "the mark on the picture")
    wait(lambda: browser.picture("#plots img") not in (None, plots), 10, "the plots to change")
    shot(browser, "clicked")
    assert browser.js("return document.querySelectorAll('#sources figure img').length") >= 1
    grid, sources = browser.picture("#grid img"), browser.text("#sources")
    browser.js(
        "const s=document.querySelector('#step input[type=range]'); s.value=4;"
        "s.dispatchEvent(new Event('input', {bubbles: true}));"
        "s.dispatchEvent(new Event('pointerup', {bubbles: true}));"
    )
    wait(lambda: browser.text("#sources") != sources, 5, "the sources at the other step")
    wait(lambda: browser.picture("#grid img") not in (None, grid), 5, "the other step")
    shot(browser, "scrubbed")
    for button, name in (("#png", "golddiff-run.png"), ("#json", "golddiff-run.json")):
        browser.click(button)
        wait(lambda name=name: (browser.downloads / name).is_file(), 10, "the download")
    figures = json.loads((browser.downloads / "golddiff-run.json").read_text())
    with Image.open(browser.downloads / "golddiff-run.png") as picture:
        assert picture.width > 1000
    if folder := os.environ.get("GOLDDIFF_SCREENSHOTS"):
        shutil.copy(browser.downloads / "golddiff-run.png", folder)
    assert figures["store"]["n"] == 1797
    assert figures["pixel"]["method"] == "optimal"
    assert not browser.messages()


def test_a_click_on_the_starting_noise_gives_a_message(browser):
    generate(browser)
    wait(lambda: browser.picture("#plots img"), 10, "the plots")
    browser.click_at("#grid img", 0.05, 0.6)
    wait(lambda: "no pixel there" in browser.messages(), 5, "the message")
    generate(browser)


def test_two_pages_generate_at_once(browser, studio, chromedriver):
    other = Browser(chromedriver)
    try:
        other.open(studio.url)
        other.element("#generate")
        wait(lambda: "images" in other.text("#about"), 15, "the page to fill")
        other.type("#seed input", "7")  # appended to the 0
        for window in (browser, other):
            window.click("#generate")
        for window in (browser, other):
            wait(lambda w=window: "click a pixel" in w.text("#status"), 20, "both runs")
            wait(lambda w=window: w.picture("#grid img"), 5, "both pictures")
        assert browser.picture("#grid img") != other.picture("#grid img")
        assert not browser.messages()
        assert not other.messages()
    finally:
        other.close()


def test_unusable_uploads_get_a_message_and_a_valid_one_works(browser, tmp_path):
    open_start(browser)
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not an image at all")
    upload(browser, broken)
    wait(lambda: "cannot be read as an image" in browser.messages(), 5, "the message")
    shot(browser, "no-image")
    browser.clear_messages()
    large = tmp_path / "large.png"
    Image.new("1", (10_000, 10_000)).save(large)
    upload(browser, large)
    wait(lambda: "cannot be read as an image" in browser.messages(), 10, "the message")
    browser.clear_messages()
    good = tmp_path / "good.png"
    Image.linear_gradient("L").save(good)
    upload(browser, good)
    wait(lambda: browser.picture("#preview img"), 5, "the preview")
    generate(browser)
    shot(browser, "from-an-image")


def open_tab(browser, name):
    browser.js("[...document.querySelectorAll('button[role=tab]')]"
               ".find(b => b.innerText.includes(arguments[0])).click()", name)  # fmt: skip


def draw(browser, sheet):
    """Draw a diagonal line on a visible sheet."""
    box = wait(
        lambda: browser.js(
            "const c=document.querySelector(arguments[0] + ' canvas'); if (!c) return null;"
            "c.scrollIntoView({block: 'center'}); const b=c.getBoundingClientRect();"
            "return b.width ? [b.left, b.top, b.width, b.height] : null", sheet,
        ),
        10, "the canvas",
    )  # fmt: skip
    time.sleep(1)
    x, y, w, h = box
    browser.pointer([(x + w * (0.3 + 0.1 * i), y + h * (0.3 + 0.1 * i)) for i in range(5)])
    time.sleep(0.5)


def test_a_drawing_is_denoised(browser):
    open_start(browser)
    open_tab(browser, "Draw")
    draw(browser, "#sketch")
    browser.click("#use-sketch")
    wait(lambda: browser.picture("#preview img") or browser.messages(), 10, "the preview")
    shot(browser, "drawn")
    assert not browser.messages()
    generate(browser)


@pytest.mark.parametrize("wide", [True, False])
def test_a_painted_hole_is_filled(studio, chromedriver, tmp_path, wide):
    """The page shows the known pixels, the restorations, their mean and their sources."""
    window = Browser(chromedriver) if wide else Browser(chromedriver, 500, 1000)
    try:
        window.open(studio.url)
        window.element("#generate")
        open_tab(window, "Restore")
        window.click("#restore-it")
        wait(lambda: "Choose an image file: none yet" in window.messages(), 10, "the message")
        window.clear_messages()
        picture = Image.fromarray(to_pixels(golddiff.load("digits").images([5]))[0])
        picture.resize((64, 64)).save(tmp_path / "five.png")
        window.type("#restore input[type=file]", str(tmp_path / "five.png"))
        script = "return getComputedStyle(document.querySelector('#hole .paper')).backgroundImage"
        wait(lambda: window.js(script).startswith("url"), 10, "the picture")
        window.click("#restore-it")
        wait(lambda: "the picture lost nothing" in window.messages(), 10, "the message")
        window.clear_messages()
        draw(window, "#hole")
        shot(window, f"painted-{wide}")
        window.click("#restore-it")
        wait(lambda: "restoring" in window.text("#restored"), 10, "the start")
        window.click("#stop-restoring")
        wait(lambda: "stopped" in window.text("#restored"), 30, "the end")
        window.click("#restore-it")
        wait(lambda: "novelty" in window.text("#restored"), 60, "the restorations")
        captions = "return [...document.querySelectorAll('.restored figure')].map(e => e.innerText)"
        names = ["known", *(f"restoration {i}" for i in range(1, 5)), "their mean"]
        assert window.js(captions) == [*names, "where they differ"]
        sources = "return document.querySelectorAll('#restored .sources:not(.restored) img').length"
        assert window.js(sources) == 4 * 8
        assert window.js("return document.documentElement.scrollWidth <= window.innerWidth")
        window.js("document.querySelector('#restored').scrollIntoView()")
        shot(window, f"restored-{wide}")
        assert not window.messages()
        assert window.hosts() <= {"127.0.0.1"}
    finally:
        window.close()


def test_a_restoration_ends_when_its_page_is_closed_or_loaded_again(studio, tmp_path):
    page, picture = Page(studio.port, random.Random(2)), Image.linear_gradient("L")
    picture.save(tmp_path / "x.png")
    file = (tmp_path / "x.png").read_bytes()
    head = b'--b\r\nContent-Disposition: form-data; name="files"; filename="x.png"\r\n\r\n'
    _, paths = page.ask("POST", "/gradio_api/upload", head + file + b"\r\n--b--", FORM)
    upload = {"path": json.loads(paths)[0], "meta": {"_type": "gradio.FileData"}}
    bring = {"data": ["digits", upload], "fn_index": page.calls["bring"]["id"]}
    assert page._queue(bring) == "done"
    hole = Image.new("RGB", (SIDE, SIDE))
    hole.paste("red", (0, 0, SIDE // 2, SIDE))
    data = ["digits", None, as_url(hole), 1, False, 0, 8, "0.1"]
    body = {"data": data, "fn_index": page.calls["restored"]["id"], "session_hash": page.hash}
    with urllib.request.urlopen(f"{studio.url}gradio_api/heartbeat/{page.hash}") as heartbeat:
        heartbeat.readline()
        page.ask("POST", "/gradio_api/queue/join", json.dumps(body).encode(), JSON)
        messages = urllib.request.urlopen(
            f"{studio.url}gradio_api/queue/data?session_hash={page.hash}"
        )
        lines = iter(messages.readline, b"")
        assert any(b"restoring" in line for line in lines)
    assert any(b"stopped" in line for line in lines)


def test_a_store_deleted_while_the_studio_runs_gives_a_message(browser, studio_stores):
    browser.click("#store input")
    wait(lambda: browser.js("return document.querySelectorAll('[role=option]').length"), 5, "names")
    browser.js("[...document.querySelectorAll('[role=option]')].find(o => "
               "o.innerText.includes('colours')).dispatchEvent(new MouseEvent('mousedown', "
               "{bubbles: true}))")  # fmt: skip
    wait(lambda: "60 images" in browser.text("#about"), 10, "the other store")
    generate(browser)
    # Otherwise a pending explanation may find the store deleted and show its own message.
    wait(lambda: browser.picture("#plots img"), 20, "the plots")
    shot(browser, "colours")
    shutil.move(studio_stores / "colours", studio_stores / "away")
    try:
        browser.click("#generate")
        wait(lambda: "deleted or damaged" in browser.messages(), 10, "the message")
        shot(browser, "deleted")
    finally:
        shutil.move(studio_stores / "away", studio_stores / "colours")
    browser.clear_messages()
    generate(browser)


def slide(browser, slider, value):
    browser.js(
        f"const s=document.querySelector('{slider} input[type=range]'); s.value={value};"
        "s.dispatchEvent(new Event('input', {bubbles: true}));"
        "s.dispatchEvent(new Event('pointerup', {bubbles: true}));"
    )


def test_the_novelty_slider_sets_the_novelty_of_the_run(browser):
    assert browser.js("return document.querySelector('#novelty input[type=range]').value") == "0.7"
    generate(browser)
    plots = wait(lambda: browser.picture("#plots img"), 20, "the plots")
    grid = browser.picture("#grid img")
    slide(browser, "#novelty", 0.2)
    generate(browser)
    assert browser.picture("#grid img") != grid
    wait(lambda: browser.picture("#plots img") not in (None, plots), 20, "the plots to change")
    (browser.downloads / "golddiff-run.json").unlink(missing_ok=True)
    browser.click("#json")
    wait(lambda: (browser.downloads / "golddiff-run.json").is_file(), 10, "the download")
    assert json.loads((browser.downloads / "golddiff-run.json").read_text())["novelty"] == 0.2


def test_a_stopped_run_shows_its_plots(browser):
    for slider, value in (("#steps", 100), ("#n", 4)):  # long enough to be stopped before the end
        slide(browser, slider, value)
    browser.click("#generate")
    # A step counts once every method has taken it.
    wait(lambda: re.search(r"step [2-9]", browser.text("#status")), 30, "the run to start")
    browser.click("#stop")
    wait(lambda: "stopped after" in browser.text("#status"), 10, "the run to stop")
    wait(lambda: browser.picture("#plots img"), 10, "the plots")
    assert not browser.messages()


def test_other_files_are_neither_served_nor_accepted_as_uploads(studio, tmp_path):
    page, secret = Page(studio.port, random.Random(0)), tmp_path / "secret.png"
    Image.new("L", (8, 8)).save(secret)
    for path in (secret, "/etc/passwd", __file__):
        assert page.status("GET", f"/gradio_api/file={path}") in ("HTTP 403", "HTTP 404")
    for path in (str(secret), "http://images.example/cat.png"):
        assert upload_of(page, path) == "told"
    assert "images.example" not in studio.hosts_contacted()


def test_a_form_of_a_foreign_page_leaves_no_files(studio):
    """Browsers send forms, with files, to other origins without asking."""
    page, headers = Page(studio.port, random.Random(0)), {**FORM, "origin": "https://evil.example"}
    form = b'--b\r\nContent-Disposition: form-data; name="files"; filename="x"\r\n\r\nx\r\n--b--'
    before = set(studio.output.parent.rglob("x"))
    for path in ("upload", "component_server"):
        status = page.status("POST", f"/gradio_api/{path}", form, headers)
        assert status in ("HTTP 403", "HTTP 404")
    assert set(studio.output.parent.rglob("x")) == before


@pytest.mark.parametrize("request_", HOSTILE, ids=lambda request_: request_.__name__)
def test_the_studio_survives_hostile_requests(studio, request_):
    page = Page(studio.port, random.Random(1))
    refusals = ("told", *(f"HTTP {status}" for status in (400, 403, 404, 413, 422)))
    others = {
        "large_upload": ["HTTP 200"],  # a large file is allowed
        "slow_request": ["left"],
        "absurd_settings": [*refusals, "done"],
    }
    assert request_(page) in others.get(request_.__name__, refusals)
    assert page.status("GET", "/") == "HTTP 200"
    assert process_memory(studio.process.pid)["VmHWM"] < LIMIT


def test_the_page_refers_to_no_other_host(studio):
    answer = urllib.request.urlopen(studio.url)
    page = answer.read().decode()
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    named = re.findall(r"""(?:src|href|action)=["']?(?:\w+:)?//([^/:"']+)""", page)
    assert set(named) <= {"127.0.0.1"}


def test_the_server_contacts_no_other_host(studio, browser):
    generate(browser)
    assert studio.hosts_contacted() <= {"127.0.0.1", "unix"}
