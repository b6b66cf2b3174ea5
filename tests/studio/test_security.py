"""Who may ask the studio for what: its own page, on this machine."""

import asyncio
import os

import pytest

pytest.importorskip("gradio")

from golddiff.studio import security
from golddiff.studio.library import Library
from golddiff.studio.security import MAX_BYTES, POSTS, UPLOAD, OnlyThisPage, trim
from golddiff.studio.server import MAX_PAGES, make_app

HOST = {"host": "127.0.0.1:7860"}
JOIN = "/gradio_api/queue/join"


@pytest.fixture
def ask(tmp_path):
    """ask(method, path, headers): the status; 200 where the page's own application was reached."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guarded = OnlyThisPage(app, True, tmp_path)

    def check(method, path, headers, guard=guarded):
        return asyncio.run(status_of(guard, method, path, {**HOST, **headers}))

    check.guard = guarded
    return check


async def status_of(app, method, path, headers, body=b""):
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": body}

    raw = [(key.encode(), value.encode()) for key, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": raw, "query_string": b""}
    await app({**scope, "scheme": "http", "server": ("127.0.0.1", 7860)}, receive, send)
    return sent[0]["status"]


SMALL = {"content-length": "10"}


def test_the_page_s_own_posts_and_those_of_programs_here_are_taken(ask):
    own = {"origin": "http://127.0.0.1:7860", "sec-fetch-site": "same-origin"}
    assert ask("POST", JOIN, {**SMALL, **own}) == 200
    assert ask("POST", UPLOAD, {**SMALL, **own}) == 200
    assert ask("POST", JOIN, SMALL) == 200


@pytest.mark.parametrize("path", [JOIN, UPLOAD, "/gradio_api/component_server"])
@pytest.mark.parametrize(
    "foreign",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://127.0.0.1:7860", "sec-fetch-site": "cross-site"},
    ],
)
def test_a_foreign_page_s_posts_are_refused(ask, path, foreign):
    assert ask("POST", path, {**SMALL, **foreign}) in (403, 404)


@pytest.mark.parametrize("headers", [{"host": "[::1"}, {"origin": "http://[::1"}])
def test_a_broken_address_is_refused_and_no_error_of_the_server(ask, headers):
    assert ask("POST", JOIN, {**SMALL, **headers}) == 400


@pytest.mark.parametrize("path", ["/gradio_api/component_server", "/gradio_api/run/predict",
                                  "/gradio_api/vibe-edit", "/login", "/"])  # fmt: skip
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_what_the_page_never_sends_is_taken_from_nobody(ask, method, path):
    assert ask(method, path, SMALL) == 404


def test_a_request_says_how_long_it_is_and_is_not_too_long(ask):
    assert ask("POST", JOIN, {}) == 411
    assert ask("POST", JOIN, {"content-length": "-1"}) == 411
    assert ask("POST", JOIN, {"content-length": str(POSTS[JOIN] + 1)}) == 413
    assert ask("POST", UPLOAD, {"content-length": str(POSTS[UPLOAD] + 1)}) == 413
    assert ask("POST", UPLOAD, {"content-length": str(POSTS[UPLOAD])}) == 200


def test_uploads_on_their_way_have_a_limit_together(tmp_path):
    length = {**HOST, "content-length": str(POSTS[UPLOAD])}
    statuses = []

    async def all_at_once():
        everyone = asyncio.Event()

        async def app(scope, receive, send):
            await everyone.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        guard = OnlyThisPage(app, True, tmp_path)
        asked = [asyncio.create_task(status_of(guard, "POST", UPLOAD, length)) for _ in range(9)]
        await asyncio.sleep(0.05)
        everyone.set()
        statuses.extend(await asyncio.gather(*asked))
        statuses.append(await status_of(guard, "POST", UPLOAD, length))

    asyncio.run(all_at_once())
    assert statuses[:9].count(200) == MAX_BYTES // POSTS[UPLOAD]
    assert statuses[:9].count(503) == 9 - MAX_BYTES // POSTS[UPLOAD]
    assert statuses[9] == 200


def test_old_files_make_room_for_new_ones(tmp_path, ask, monkeypatch):
    for i in range(6):
        path = tmp_path / f"folder{i}" / "upload.png"
        path.parent.mkdir()
        path.write_bytes(bytes(100))
        os.utime(path, (i, i))
    trim(tmp_path, 450)
    left = sorted(path.parent.name for path in tmp_path.rglob("*.png"))
    assert left == ["folder2", "folder3", "folder4", "folder5"]
    monkeypatch.setattr(security, "MAX_BYTES", 310)
    assert ask("POST", JOIN, SMALL) == 200  # a run, whose pictures need room too
    assert len(list(tmp_path.rglob("*.png"))) == 3
    monkeypatch.setattr(security, "MAX_BYTES", 160)
    assert ask("POST", UPLOAD, SMALL) == 200
    assert [path.parent.name for path in tmp_path.rglob("*.png")] == ["folder5"]


@pytest.fixture(scope="module")
def app(tmp_path_factory, make_store, smooth_images):
    store, folder = make_store(smooth_images(9, (1, 8, 8))), tmp_path_factory.mktemp("app")
    made = make_app(Library({"s": lambda: store}), folder, True, 7860)
    made.folder = folder
    return made


def test_no_list_of_what_gradio_answers_is_served(app):
    for path in ("/openapi.json", "/docs", "/redoc"):
        assert asyncio.run(status_of(app, "GET", path, HOST)) == 404


def test_no_control_of_the_page_takes_a_file_but_the_upload(app):
    """gradio's own sheet takes files too: it decodes them before anyone looks at their size."""
    page = app.routes[-1].app.get_blocks()
    controls = {type(block).__name__ for block in page.blocks.values()}
    assert "UploadButton" in controls
    assert not controls & {"ImageEditor", "Sketchpad", "Paint", "File", "FileExplorer"}
    assert all(
        not getattr(block, "interactive", False)
        for block in page.blocks.values()
        if type(block).__name__ == "Image"
    )


def test_a_run_s_files_lie_where_gradio_deletes_old_ones(app):
    page = app.routes[-1].app.get_blocks()
    assert {block.GRADIO_CACHE for block in page.blocks.values()} == {str(app.folder)}
    explain = [fn.fn for fn in page.fns.values() if fn.name == "explain"]
    assert {fn.__self__.folder for fn in explain} == {app.folder}


def test_runs_of_pages_that_were_left_are_given_up(app):
    sessions = app.routes[-1].app.state_holder
    for page in range(2 * MAX_PAGES):
        assert sessions[str(page)]
    assert list(sessions.session_data) == [str(page) for page in range(MAX_PAGES, 2 * MAX_PAGES)]
