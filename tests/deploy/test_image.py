"""What goes into the image, and the few programs that only it needs."""

import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import yaml

from deploy.image.__main__ import LOCKS, bentofile, project_version
from deploy.image.__main__ import main as build_and_tell
from deploy.image.healthcheck import ready
from deploy.image.sbom import main as complete
from runtimes.artifact import open_artifact
from service.settings import ROOT
from tests.conftest import Once
from tests.service.server import built_bento

ENTRYPOINT = ROOT / "deploy" / "image" / "entrypoint.sh"


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.slow)])
def bento(request: pytest.FixtureRequest, once: Once) -> Path:
    """A built bento of a flavour, which is its folder's `flavour`."""
    folder = built_bento(once, request.param)
    (folder / "flavour").write_text(request.param)
    return folder


def test_bento_and_image_hold_what_serving_needs_and_nothing_else(bento: Path) -> None:
    source = bento / "src"
    held = {path.name for path in source.iterdir()}
    packages = set("core models data runtimes export robustness service artifacts".split())
    assert held == packages | {"deploy", "requirements", "LICENSE", "bentofile.yaml"}
    flavour = (bento / "flavour").read_text()
    lock = LOCKS[flavour]
    torch = f"torch-{flavour}.txt"
    assert {path.name for path in (source / "requirements").iterdir()} == {lock, torch, "sbom.txt"}
    files = {path.relative_to(source).as_posix() for path in source.glob("deploy/**/*.*")}
    assert files == {
        f"deploy/image/{each}" for each in ("entrypoint.sh", "healthcheck.py", "sbom.py")
    }
    assert not [path for path in source.rglob("*") if path.suffix in (".pyc", ".sqlite3")]
    # Its image serves as nobody, and says whether it is ready.
    lines = (bento / "env" / "docker" / "Dockerfile").read_text().splitlines()
    assert "ARG BASE=docker.io/library/python:3.11-slim-bookworm" in lines
    assert "USER 10001:10001" in lines
    assert "VOLUME /state" in lines
    assert [line for line in lines if line.startswith("HEALTHCHECK")]
    text = "\n".join(lines)
    assert f"--require-hashes -r /opt/requirements/{lock}" in text
    assert text.index(f"--require-hashes -r /opt/requirements/{torch}") < text.index(lock)
    # What changes seldom is a layer of its own, below what changes often.
    environment, bento_layer = (
        f"COPY --from=install /layers/{n}/ /" for n in ("environment", "bento")
    )
    assert lines.index(environment) < lines.index(bento_layer)
    assert "WORKDIR /" in lines  # not the state, which may be closed to this user
    assert f'assay.flavour="{flavour}"' in text
    assert ("ldconfig" in text) == (flavour == "cuda")
    assert "{{" not in text and "{%" not in text


def test_bento_of_an_image_does_not_tell_when_it_was_built(bento: Path, tmp_path: Path) -> None:
    lines = (bento / "env" / "docker" / "Dockerfile").read_text().splitlines()
    (command,) = (line.strip(" &\\") for line in lines if "sed -i" in line)
    (copy := tmp_path / "bento" / "bento.yaml").parent.mkdir()
    shutil.copy(bento / "bento.yaml", copy)
    environment = os.environ | {"VERSION": project_version()}
    subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, check=True, timeout=20)
    built, held = (yaml.safe_load(path.read_text()) for path in (bento / "bento.yaml", copy))
    fixed = {"version": project_version(), "creation_time": "1980-01-01T00:00:00+00:00"}
    assert held == built | fixed and held != built


def test_flavours_hold_the_same_but_for_their_lock() -> None:
    cpu, cuda = (yaml.safe_load(bentofile(flavour)) for flavour in LOCKS)
    for flavour, held in (("cpu", cpu), ("cuda", cuda)):
        assert held["docker"].pop("env") == {"FLAVOUR": flavour}
    locks = set(cpu.pop("include")) ^ set(cuda.pop("include"))
    names = {f"requirements/{name}.txt" for name in ("cpu", "gpu", "torch-cpu", "torch-cuda")}
    assert locks == names and cpu == cuda


def locked(name: str) -> dict[str, str]:
    """The versions in a lock, by package; every one has a hash."""
    text = (ROOT / "requirements" / name).read_text().replace(" \\\n", " ")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all("--hash=sha256:" in line for line in lines)
    return dict(line.split()[0].split("==") for line in lines)


def test_image_and_manifests_name_the_versions_that_are_built() -> None:
    (line,) = (
        each for each in (ROOT / "Makefile").read_text().splitlines() if each.startswith("TORCH =")
    )
    pinned = line.partition("= ")[2]
    for flavour, lock in LOCKS.items():
        torch, others = (locked(f"torch-{flavour}.txt"), locked(lock))
        assert f"torch=={torch.pop('torch').removesuffix('+cpu')}" == pinned
        assert {name: others[name] for name in torch if name in others} == {
            name: version for name, version in torch.items() if name in others
        }
    for name in ("single", "scaled"):
        path = ROOT / "deploy" / "kubernetes" / name / "kustomization.yaml"
        (image,) = yaml.safe_load(path.read_text())["images"]
        assert image == {"name": "assay", "newTag": f"{project_version()}-cpu"}


@pytest.mark.slow
def test_bill_of_materials_names_packages_and_models(tmp_path: Path) -> None:
    source = tmp_path / "packages.json"
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", "-", "-o", str(source)]
    subprocess.run(command, input=b"bentoml==1.4.39", check=True, capture_output=True, timeout=120)
    (tmp_path / "bento").mkdir()
    (tmp_path / "bento" / "src").symlink_to(ROOT)
    complete(source, tmp_path / "bento", tmp_path / "sbom.json")
    components = json.loads((tmp_path / "sbom.json").read_text())["components"]
    assert components[0]["purl"] == "pkg:pypi/bentoml@1.4.39"
    models = {
        each["name"]: each["hashes"][0]["content"]
        for each in components
        if each["type"] == "machine-learning-model"
    }
    artifact = open_artifact(ROOT / "artifacts" / "imdb-transject")
    shipped = [*(ROOT / "artifacts").glob("*/manifest.json")]
    assert models["imdb-transject"] == artifact.digest and len(models) == len(shipped)
    source.write_text('{"bomFormat": "CycloneDX", "components": []}')
    with pytest.raises(ValueError, match="valid CycloneDX 1.6"):
        complete(source, tmp_path, tmp_path / "wrong.json")
    assert not (tmp_path / "wrong.json").exists()


def test_health_check_tells_ready_from_not_ready_and_gone(tmp_path: Path) -> None:
    files = partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.HTTPServer(("127.0.0.1", 0), files) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        assert ready(server.server_port) is False  # 404
        (tmp_path / "readyz").touch()
        assert ready(server.server_port) is True
        server.shutdown()
    assert ready(server.server_port) is False


def entered(temporary: str, state: Path) -> dict[str, str]:
    """What a command sees that is run by the entry point."""
    environment = {"PATH": os.environ["PATH"], "TMPDIR": temporary, "ASSAY_STATE": str(state)}
    seen = subprocess.run(
        ["sh", str(ENTRYPOINT), "env"],
        env=environment, check=True, capture_output=True, text=True, timeout=20,
    )  # fmt: skip
    return dict(line.split("=", 1) for line in seen.stdout.splitlines())


def test_scratch_files_go_to_the_temporary_folder_or_below_the_state(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    seen = entered(str(tmp_path / "temporary"), tmp_path / "state")
    assert seen["BENTOML_HOME"] == f"{tmp_path}/temporary/assay/bentoml"
    assert Path(seen["BENTOML_HOME"]).is_dir() and Path(seen["TMPDIR"]).is_dir()
    assert not (tmp_path / "state").exists()
    # Where nothing else is writable: below the state, and emptied at each start.
    seen = entered("/proc", tmp_path)
    assert Path(seen["BENTOML_HOME"]).is_relative_to(tmp_path / "scratch")
    (Path(seen["TMPDIR"]) / "leftover").touch()
    assert not (Path(entered("/proc", tmp_path)["TMPDIR"]) / "leftover").exists()


def test_a_start_without_any_writable_folder_ends_with_a_sentence() -> None:
    environment = {"PATH": os.environ["PATH"], "TMPDIR": "/proc", "ASSAY_STATE": "/proc/state"}
    for log_format in ("json", "auto", "text"):
        ended = subprocess.run(
            ["sh", str(ENTRYPOINT), "env"],
            env=environment | {"ASSAY_LOG_FORMAT": log_format},
            capture_output=True, text=True, timeout=20,
        )  # fmt: skip
        told = ended.stderr if log_format == "text" else json.loads(ended.stderr)["message"]
        assert ended.returncode == 1 and ended.stdout == ""
        assert told.startswith("Assay cannot start: user ") and "ASSAY_STATE=/proc/state" in told


def test_an_engine_that_fails_or_is_missing_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("deploy.image.__main__.build_bento", lambda _: tmp_path)
    monkeypatch.setattr("deploy.image.__main__.revision", lambda: "unknown")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("BENTOML_HOME", str(tmp_path / "home"))
    for told in ("No such file or directory: 'podman'", "podman build ended with status 3"):
        assert build_and_tell(["--engine", "podman"]) == 1
        name = f"assay:{project_version()}-cpu"
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"{name} was not made: ") and line.endswith(told)
        engine = tmp_path / "podman"
        engine.write_text("#!/bin/sh\nexit 3\n")
        engine.chmod(0o755)
