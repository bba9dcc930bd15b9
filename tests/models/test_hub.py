"""Models of the hub by name: which file is meant, and what is fetched of it, from a server of this test."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import decodestep as ds
from decodestep import ModelError, cli
from decodestep.models import fetch, hub

FOLDER = ["config.json", "model.safetensors", "tokenizer.json", "README.md", "pytorch_model.bin", "modeling_evil.py"]
MANY = ["x-Q4_K_M.gguf", "x-Q4_K_S.gguf", "x-IQ4_K.gguf", "x.Q8_0.gguf", "mmproj-x-Q8_0.gguf", "README.md"]
PARTS = [f"Q6_K/x-Q6_K-0000{part}-of-00003.gguf" for part in (1, 2, 3)]


@pytest.mark.parametrize(
    "name", ["org/name", "org/name.v2", "o-r.g/na_me", "org/name:a.gguf", "org/name:sub/a.gguf", "a/b:Q4_K_M"]
)
def test_names_of_the_hub(name):
    assert hub.is_name(name)


@pytest.mark.parametrize(
    "name", ["name", "org/name.gguf", "./name", "../name", "/org/name", "a/b/c", "a/b:", "a/b:c:d", "~/x", "a/", ""]
)
def test_what_is_a_path_and_no_name(name):
    assert not hub.is_name(name)


@pytest.mark.parametrize(
    ("files", "choice", "found"),
    [
        (FOLDER, None, []),
        ([*FOLDER, "x.gguf"], None, []),
        (["x.gguf", "README.md", "mmproj-x.gguf"], None, ["x.gguf"]),
        (MANY, None, ["x-Q4_K_M.gguf"]),
        (MANY, "q8_0", ["x.Q8_0.gguf"]),
        (MANY, "Q4_K_S", ["x-Q4_K_S.gguf"]),
        (MANY, "IQ4_K", ["x-IQ4_K.gguf"]),
        (MANY, "x-IQ4_K.gguf", ["x-IQ4_K.gguf"]),
        ([*MANY, *PARTS], "Q6_K", PARTS),
        ([*MANY, *PARTS], PARTS[0], PARTS),
        (PARTS, None, PARTS),
    ],
)
def test_which_file_is_meant(files, choice, found):
    assert hub.choose("org/name", files, choice) == found


@pytest.mark.parametrize(
    ("files", "choice", "message"),
    [
        (["README.md"], None, "^org/name: neither safetensors nor a GGUF file is there$"),
        (["a.gguf", "b.gguf"], None, "^org/name: no file fits; name one, org/name:FILE, of a.gguf, b.gguf$"),
        (MANY, "Q4_K", "^org/name: no file fits; name one"),
        (
            ["a-Q8_0.gguf", "b-Q8_0.gguf"],
            "Q8_0",
            "^org/name: several files fit; name one, org/name:FILE, of a-Q8_0.gguf, b-Q8_0.gguf$",
        ),
    ],
)
def test_what_is_none_of_the_files_or_several(files, choice, message):
    with pytest.raises(ModelError, match=message):
        hub.choose("org/name", files, choice)


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A hub with the repository org/name, of these files by name; the client's cache is empty."""
    constants = pytest.importorskip("huggingface_hub.constants")
    files: dict[str, bytes] = {}
    asked: list[str] = []
    commit = "c" * 40

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            path = self.path.partition("?")[0]
            prefix = f"/org/name/resolve/{commit}/"
            if path.startswith("/api/models/org/name/tree/"):
                tree = [{"type": "file", "path": name, "size": len(data), "oid": "0"} for name, data in files.items()]
                self._answer(200, json.dumps(tree).encode())
            elif path.startswith("/api/models/org/name"):
                siblings = [{"rfilename": name} for name in files]
                self._answer(200, json.dumps({"id": "org/name", "sha": commit, "siblings": siblings}).encode())
            elif path.startswith(prefix) and path.removeprefix(prefix) in files:
                asked.append(path.removeprefix(prefix))
                data = files[path.removeprefix(prefix)]
                self._answer(200, data, ETag=f'"{hashlib.sha256(data).hexdigest()}"', **{"X-Repo-Commit": commit})
            else:
                self._answer(404, b"{}", **{"X-Error-Code": "RepoNotFound"})

        def _answer(self, status, data, **headers):
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), "Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.chdir(tmp_path)

        def stop():
            server.shutdown()
            server.server_close()

        yield files, asked, stop
        stop()


def test_a_file_is_fetched_once_and_loaded(served, tiny_file):
    files, asked, stop = served
    path = tiny_file()
    files |= {"x-Q4_K_M.gguf": path.read_bytes(), "x-Q8_0.gguf": b"another"}
    params = ds.SamplingParams(do_sample=False, max_new_tokens=3)
    expected = ds.generate(ds.load(path), [[1, 2]], params)
    for name in ("org/name:Q4_K_M", "org/name", "org/name:x-Q4_K_M.gguf"):
        assert ds.generate(ds.load(name), [[1, 2]], params) == expected
    assert set(asked) == {"x-Q4_K_M.gguf"}
    stop()  # the hub is out of reach, and its cache has the file
    assert fetch.resolve_path("org/name:Q4_K_M").name == "x-Q4_K_M.gguf"


def test_of_a_folder_no_code_and_no_other_weights_are_fetched(served):
    files, asked, _ = served
    files |= dict.fromkeys(FOLDER, b"{}") | {
        "chat_template.jinja": b"x",
        "onnx/model.onnx": b"x",
        "tokenizer_config.json": b"{}",
    }
    folder = fetch.resolve_path("org/name")
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert there == set(asked) == {*FOLDER[:3], "chat_template.jinja", "tokenizer_config.json"}


def test_what_is_not_there_is_told_as_path_and_as_name(served, capsys):
    with pytest.raises(ModelError, match="^org/other: no such file or folder here, and not to be had from the Hub: "):
        ds.load("org/other")
    assert cli.main(["env", "--model", "org/other"]) == 1
    assert capsys.readouterr().err.startswith("decodestep: org/other: no such file or folder here")


def test_a_path_comes_before_a_name(served, tmp_path, tiny_file):
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "name").write_bytes(tiny_file().read_bytes())
    assert fetch.resolve_path("org/name") == Path("org/name")


def test_without_the_package_the_extra_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModuleNotFoundError, match=r"^org/name: no such file or folder; .*pip install 'decodestep\[hub\]'$"):
        ds.load("org/name")
    assert cli.main(["env", "--model", "org/name"]) == 1
    assert "decodestep[hub]" in capsys.readouterr().err
