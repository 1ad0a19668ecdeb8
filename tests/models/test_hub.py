"""The hub, from a cache and from a server of this test's own: nothing here leaves the machine."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from muster.errors import BadInput
from muster.models.hf_config import MAX_CONFIG_BYTES
from muster.models.hub import cached_config, is_hub_id
from muster.models.registry import find_model

CONFIG = {"model_type": "llama", "num_hidden_layers": 3}


class Hub(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answers = {
            "/org/good/resolve/main/config.json": (200, json.dumps(CONFIG).encode()),
            "/org/gated/resolve/main/config.json": (401, b"no"),
            "/org/broken/resolve/main/config.json": (503, b""),
            "/org/page/resolve/main/config.json": (200, b"<html>"),
            "/org/huge/resolve/main/config.json": (200, b" " * (MAX_CONFIG_BYTES + 10)),
        }
        status, body = answers.get(self.path, (404, b""))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for name in ("HF_HOME", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    server = HTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
    yield cache
    server.shutdown()
    thread.join()
    server.server_close()


def refusal(model: str) -> str:
    with pytest.raises(BadInput) as caught:
        find_model(model)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.usefixtures("hub")
def test_reads_a_config_from_the_hub() -> None:
    model = find_model("org/good")
    assert (model.name, model.num_layers) == ("org/good", 3)


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("org/none", "the hub has no such model"),
        ("org/gated", "gated, private or misspelt"),
        ("org/broken", "the hub answered with status 503"),
        ("org/page", "is not valid JSON"),
        ("org/huge", "too large"),
    ],
)
def test_says_why_the_hub_gives_none(model: str, says: str) -> None:
    assert says in refusal(model)


def test_an_unreachable_hub_is_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    message = refusal("org/good")
    assert "cannot reach the hub" in message
    assert "give the path of its config.json" in message
    assert list(cache.iterdir()) == []


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("endpoint", ["ftp://x", "file:///etc", "nonsense", "http://"])
def test_only_http_is_a_hub(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    assert "HF_ENDPOINT" in refusal("org/good")


def put_in_cache(cache: Path, revision: str, layers: int) -> Path:
    folder = cache / "models--org--good" / "snapshots" / revision
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": layers}))
    return folder.parents[1]


def test_the_cache_comes_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set" in refusal("org/good")
    put_in_cache(cache, "aaa", 5)
    assert find_model("org/good").num_layers == 5
    (put_in_cache(cache, "bbb", 6) / "refs").mkdir()
    (cache / "models--org--good" / "refs" / "main").write_text("bbb\n")
    assert find_model("org/good").num_layers == 6


def test_the_cache_lies_where_the_environment_says(tmp_path: Path) -> None:
    put_in_cache(tmp_path / "hub", "aaa", 5)
    assert cached_config("org/good", {"HF_HOME": str(tmp_path)}) is not None
    assert cached_config("org/other", {"HF_HOME": str(tmp_path)}) is None


@pytest.mark.parametrize("text", ["a/../b", "../x", "a/b/c", "a", "/a", "a/", "a b/c", "a/b\n"])
def test_what_is_no_hub_id(text: str) -> None:
    assert not is_hub_id(text)
