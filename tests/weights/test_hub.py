"""Model names: a path wins, then the built-in names, then the hub; a failure names what was tried and the way out."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors
from tiny_models import TINY_DIR

from octavo.errors import ModelLoadError
from octavo.weights import builtin, hub
from octavo.weights.builtin_models import BUILTIN_MODELS
from octavo.weights.hub import ModelFiles, resolve_model_files, resolve_tokenizer_path


def make_files(directory: Path, *names: str) -> Path:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return directory


def make_cached_repository(cache: Path, repo: str, *names: str) -> Path:
    """Lay out a repository as the hub's own cache does."""
    root = cache / f"models--{repo.replace('/', '--')}"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text("0" * 40)
    return make_files(root / "snapshots" / ("0" * 40), *names)


@pytest.mark.parametrize(
    ("names", "kind", "path"),
    [
        pytest.param(["m.gguf"], "gguf", "m.gguf", id="one-gguf"),
        pytest.param(["model.safetensors", "config.json"], "safetensors", ".", id="one-safetensors"),
        pytest.param(
            ["m-00002-of-00002.gguf", "m-00001-of-00002.gguf"], "gguf", "m-00001-of-00002.gguf", id="split-gguf"
        ),
        pytest.param(["model.safetensors.index.json"], "safetensors", ".", id="index-only"),
        pytest.param(["model.safetensors", "m.gguf"], "safetensors", ".", id="both"),
    ],
)
def test_a_directory_is_what_its_files_are(tmp_path: Path, names: list[str], kind: str, path: str) -> None:
    make_files(tmp_path, *names)
    assert resolve_model_files(tmp_path) == ModelFiles(kind, tmp_path / path, str(tmp_path))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        pytest.param(["a.gguf", "b.gguf"], r"2 GGUF models \(a.gguf, b.gguf\)", id="two-ggufs"),
        pytest.param(["pytorch_model.bin"], "pickle", id="pickle"),
        pytest.param(["readme.md"], "neither", id="no-weights"),
    ],
)
def test_a_directory_that_is_no_model_says_why(tmp_path: Path, names: list[str], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        resolve_model_files(make_files(tmp_path, *names))


def test_a_file_is_taken_as_gguf_unless_it_is_a_shard(tmp_path: Path) -> None:
    make_files(tmp_path, "model.q4", "model.safetensors")
    assert resolve_model_files(str(tmp_path / "model.q4")).kind == "gguf"
    with pytest.raises(ModelLoadError, match="pass its directory"):
        resolve_model_files(tmp_path / "model.safetensors")


def test_a_local_path_wins_over_a_built_in_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_files(tmp_path / "smollm2-135m", "local.gguf")
    monkeypatch.chdir(tmp_path)
    assert resolve_model_files("smollm2-135m").path.name == "local.gguf"


@pytest.mark.parametrize("name", ["smollm2", "./absent.gguf", "dir/absent.gguf", "", "a" * 10_000, "a\0b", "~nobody"])
def test_a_name_that_is_nothing_lists_what_was_tried(name: str) -> None:
    with pytest.raises(ModelLoadError, match="not an existing file or directory, not a built-in model") as error:
        resolve_model_files(name)
    assert len(str(error.value)) < 600


def test_a_near_miss_names_the_built_in_model() -> None:
    with pytest.raises(ModelLoadError, match="did you mean 'smollm2-135m'"):
        resolve_model_files("SmolLM2-135")


def test_a_built_in_model_has_no_revisions() -> None:
    with pytest.raises(ModelLoadError, match="no revisions"):
        resolve_model_files("smollm2-135m", revision="main")


def test_built_in_models_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "fetch_builtin", lambda model, directory: Path(directory) / model.file_name)
    files = resolve_model_files("gemma3-270m", download_dir=tmp_path)
    assert files == ModelFiles("gguf", tmp_path / BUILTIN_MODELS["gemma3-270m"].file_name, "gemma3-270m")


def test_a_repository_in_the_cache_is_used_offline(tmp_path: Path) -> None:
    snapshot = make_cached_repository(tmp_path, "org/name", "config.json", "model.safetensors")
    assert resolve_model_files("org/name", download_dir=tmp_path) == ModelFiles("safetensors", snapshot, "org/name")


def test_the_pooling_of_a_sentence_transformers_repository_is_fetched_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = make_cached_repository(tmp_path, "org/name", "config.json", "model.safetensors", "modules.json")
    asked: list[list[str]] = []

    def snapshot_of(*_args: object, **_options: object) -> Path:
        asked.append(_args[2])  # type: ignore[arg-type]
        return snapshot

    monkeypatch.setattr(hub, "_snapshot", snapshot_of)
    resolve_model_files("org/name", download_dir=tmp_path)
    assert asked[1:] == [["1_Pooling/config.json"]]


def test_a_named_file_in_the_cache_is_used_offline(tmp_path: Path) -> None:
    snapshot = make_cached_repository(tmp_path, "org/name", "q4.gguf", "q8.gguf")
    assert resolve_model_files("org/name:q8.gguf", download_dir=tmp_path).path == snapshot / "q8.gguf"


def test_the_only_model_of_a_cached_repository_is_found_offline(tmp_path: Path) -> None:
    snapshot = make_cached_repository(tmp_path, "org/name", "config.json", "gguf/only.gguf")
    assert resolve_model_files("org/name", download_dir=tmp_path).path == snapshot / "gguf/only.gguf"


def test_a_cached_description_is_no_model_offline(tmp_path: Path) -> None:
    make_cached_repository(tmp_path, "org/name", "config.json")
    with pytest.raises(ModelLoadError, match="not in the local cache, and HF_HUB_OFFLINE is set"):
        resolve_model_files("org/name", download_dir=tmp_path)


def inspect_over_network(endpoint: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run `octavo inspect` on a model of a hub, which is told by the environment alone."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": endpoint, "HF_HOME": str(cache)}
    environment |= {"NO_PROXY": "*", "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-m", "octavo", "inspect", "org/name"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_a_hub_that_cannot_be_reached_is_told_at_once(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = inspect_over_network(endpoint, tmp_path)
    assert done.returncode == 1
    assert "Retry" not in done.stderr
    assert f"not in the local cache, and {endpoint} cannot be reached (ConnectError: " in done.stderr


class SlowHub(BaseHTTPRequestHandler):
    """Has one file of one repository, and thinks before it answers."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        time.sleep(0.3)
        content = (TINY_DIR / "llama" / "config.json").read_bytes()
        is_config = self.path == "/org/name/resolve/main/config.json"
        self.send_response(200 if is_config else 404)
        for name, value in (("Content-Length", str(len(content))), ("ETag", '"e"'), ("X-Repo-Commit", "0" * 40)):
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_slow_hub_serves_its_files(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), SlowHub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = inspect_over_network(f"http://127.0.0.1:{server.server_port}", tmp_path)
        server.shutdown()
    assert done.returncode == 0, done.stderr
    assert "config alone" in done.stdout


def test_offline_without_a_cache_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="`hf download org/name`"):
        resolve_model_files("org/name", download_dir=tmp_path)
    with pytest.raises(ModelLoadError, match=r"`hf download org/name x\.gguf`"):
        resolve_model_files("org/name:x.gguf", download_dir=tmp_path)


@pytest.mark.parametrize(
    ("ggufs", "message"),
    [
        pytest.param(["a.gguf", "b.gguf"], r"name one, for example org/name:a\.gguf", id="several"),
        pytest.param([], "neither", id="none"),
    ],
)
def test_a_repository_without_safetensors_asks_for_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ggufs: list[str], message: str
) -> None:
    make_cached_repository(tmp_path, "org/name", "config.json")
    monkeypatch.setattr(hub, "_why_unreachable", lambda: None)
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *_, **__: ["config.json", *ggufs])
    with pytest.raises(ModelLoadError, match=message):
        resolve_model_files("org/name", download_dir=tmp_path)


def test_a_repository_with_a_single_gguf_needs_no_file_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = make_cached_repository(tmp_path, "org/name", "only.gguf")
    monkeypatch.setattr(hub, "_why_unreachable", lambda: None)
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *_, **__: ["only.gguf"])
    assert resolve_model_files("org/name", download_dir=tmp_path).path == snapshot / "only.gguf"


PARTS = ["q4/m-00001-of-00002.gguf", "q4/m-00002-of-00002.gguf"]


@pytest.mark.parametrize("part", PARTS)
def test_naming_one_part_of_a_split_model_downloads_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    snapshot = make_cached_repository(tmp_path, "org/name", *PARTS)
    downloaded: list[str] = []
    download = huggingface_hub.hf_hub_download

    def watched(repo: str, file: str, **options: Any) -> Any:
        downloaded.append(file)
        return download(repo, file, **options)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", watched)
    assert resolve_model_files(f"org/name:{part}", download_dir=tmp_path).path == snapshot / PARTS[0]
    assert downloaded == PARTS


def test_a_repository_with_one_split_model_needs_no_file_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = make_cached_repository(tmp_path, "org/name", *PARTS)
    monkeypatch.setattr(hub, "_why_unreachable", lambda: None)
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *_, **__: PARTS)
    assert resolve_model_files("org/name", download_dir=tmp_path).path == snapshot / PARTS[0]


def test_a_part_that_is_not_there_is_named(tmp_path: Path) -> None:
    make_cached_repository(tmp_path, "org/name", PARTS[0])
    with pytest.raises(ModelLoadError, match=r"m-00002-of-00002\.gguf"):
        resolve_model_files(f"org/name:{PARTS[0]}", download_dir=tmp_path)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (errors.GatedRepoError, "HF_TOKEN"),
        (errors.RepositoryNotFoundError, "no such repository"),
        (errors.RevisionNotFoundError, "no such revision"),
        (errors.EntryNotFoundError, "no such file"),
        (ConnectionError, "cannot be reached"),
    ],
)
def test_what_the_hub_answers_becomes_a_way_out(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception], message: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        error = kind.__new__(kind)
        Exception.__init__(error, "as the hub put it")
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelLoadError, match=message):
        resolve_model_files("org/name")


def test_a_tokenizer_needs_no_weights_beside_it(tmp_path: Path) -> None:
    local = make_files(tmp_path / "local", "tokenizer.json")
    assert resolve_tokenizer_path(local) == local
    snapshot = make_cached_repository(tmp_path, "org/name", "tokenizer.json")
    assert resolve_tokenizer_path("org/name", download_dir=tmp_path) == snapshot


def test_a_tokenizer_can_come_from_a_gguf_file(tmp_path: Path) -> None:
    make_files(tmp_path, "m.gguf")
    assert resolve_tokenizer_path(tmp_path / "m.gguf") == tmp_path / "m.gguf"
    with pytest.raises(ModelLoadError, match="not an existing file"):
        resolve_tokenizer_path("nothing")
