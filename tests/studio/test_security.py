"""The studio answers only its own page and programs on the same computer."""

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
    """ask(method, path, headers): the HTTP status; 200 if the request reached the app."""

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


def test_posts_of_the_page_and_of_local_programs_are_accepted(ask):
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
def test_posts_of_foreign_pages_are_refused(ask, path, foreign):
    assert ask("POST", path, {**SMALL, **foreign}) in (403, 404)


@pytest.mark.parametrize("headers", [{"host": "[::1"}, {"origin": "http://[::1"}])
def test_malformed_addresses_give_status_400(ask, headers):
    assert ask("POST", JOIN, {**SMALL, **headers}) == 400


@pytest.mark.parametrize("path", ["/gradio_api/component_server", "/gradio_api/run/predict",
                                  "/gradio_api/vibe-edit", "/login", "/"])  # fmt: skip
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_requests_that_the_page_never_sends_give_status_404(ask, method, path):
    assert ask(method, path, SMALL) == 404


def test_requests_need_a_content_length_within_the_limit(ask):
    assert ask("POST", JOIN, {}) == 411
    assert ask("POST", JOIN, {"content-length": "-1"}) == 411
    assert ask("POST", JOIN, {**SMALL, "transfer-encoding": "chunked"}) == 411
    assert ask("POST", JOIN, {"content-length": str(POSTS[JOIN] + 1)}) == 413
    assert ask("POST", UPLOAD, {"content-length": str(POSTS[UPLOAD] + 1)}) == 413
    assert ask("POST", UPLOAD, {"content-length": str(POSTS[UPLOAD])}) == 200


def test_concurrent_uploads_share_a_limit(tmp_path):
    length = {**HOST, "content-length": str(POSTS[UPLOAD])}
    statuses = []

    async def upload_concurrently():
        release = asyncio.Event()

        async def app(scope, receive, send):
            await release.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        guard = OnlyThisPage(app, True, tmp_path)
        tasks = [asyncio.create_task(status_of(guard, "POST", UPLOAD, length)) for _ in range(9)]
        await asyncio.sleep(0.05)
        release.set()
        statuses.extend(await asyncio.gather(*tasks))
        statuses.append(await status_of(guard, "POST", UPLOAD, length))

    asyncio.run(upload_concurrently())
    assert statuses[:9].count(200) == MAX_BYTES // POSTS[UPLOAD]
    assert statuses[:9].count(503) == 9 - MAX_BYTES // POSTS[UPLOAD]
    assert statuses[9] == 200


def test_the_oldest_files_are_deleted_to_make_room(tmp_path, ask, monkeypatch):
    for i in range(6):
        path = tmp_path / f"folder{i}" / "upload.png"
        path.parent.mkdir()
        path.write_bytes(bytes(100))
        os.utime(path, (i, i))
    trim(tmp_path, 450)
    remaining = sorted(path.parent.name for path in tmp_path.rglob("*.png"))
    assert remaining == ["folder2", "folder3", "folder4", "folder5"]
    monkeypatch.setattr(security, "MAX_BYTES", 310)
    assert ask("POST", JOIN, SMALL) == 200  # a run also writes pictures
    assert len(list(tmp_path.rglob("*.png"))) == 3
    monkeypatch.setattr(security, "MAX_BYTES", 160)
    assert ask("POST", UPLOAD, SMALL) == 200
    assert [path.parent.name for path in tmp_path.rglob("*.png")] == ["folder5"]


@pytest.fixture(scope="module")
def app(tmp_path_factory, make_store, smooth_images):
    store, folder = make_store(smooth_images(9, (1, 8, 8))), tmp_path_factory.mktemp("app")
    guarded = make_app(Library({"s": lambda: store}), folder, True, 7860)
    guarded.folder = folder
    return guarded


def test_gradio_api_documentation_is_not_served(app):
    for path in ("/openapi.json", "/docs", "/redoc"):
        assert asyncio.run(status_of(app, "GET", path, HOST)) == 404


def test_only_the_upload_button_accepts_files(app):
    """Gradio's own sketchpad accepts files and decodes them before their size is checked."""
    page = app.routes[-1].app.get_blocks()
    controls = {type(block).__name__ for block in page.blocks.values()}
    assert "UploadButton" in controls
    assert not controls & {"ImageEditor", "Sketchpad", "Paint", "File", "FileExplorer"}
    assert all(
        not getattr(block, "interactive", False)
        for block in page.blocks.values()
        if type(block).__name__ == "Image"
    )


def test_files_of_runs_lie_in_the_cache_folder_of_gradio(app):
    page = app.routes[-1].app.get_blocks()
    assert {block.GRADIO_CACHE for block in page.blocks.values()} == {str(app.folder)}
    explain = [fn.fn for fn in page.fns.values() if fn.name == "explain"]
    assert {fn.__self__.folder for fn in explain} == {app.folder}


def test_only_the_latest_sessions_are_kept(app):
    sessions = app.routes[-1].app.state_holder
    for page in range(2 * MAX_PAGES):
        assert sessions[str(page)]
    assert list(sessions.session_data) == [str(page) for page in range(MAX_PAGES, 2 * MAX_PAGES)]


def test_no_other_page_may_read_a_response(tmp_path):
    """Gradio allows those of other servers on this machine."""
    sent = []

    async def app(scope, receive, send):
        headers = [(b"access-control-allow-origin", b"http://localhost:9999"), (b"vary", b"x")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def send(message):
        sent.extend(message["headers"])

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/config",
        "headers": [(b"host", b"127.0.0.1")],
    }
    asyncio.run(OnlyThisPage(app, True, tmp_path)(scope, None, send))
    names = {name for name, _ in sent}
    assert b"vary" in names
    assert not any(name.startswith(b"access-control") for name in names)
