"""`python -m deploy.image`: build the bento, its container image, and bring out the SBOM."""

import argparse
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKS = {"cpu": "cpu.txt", "cuda": "gpu.txt"}
"""By flavour, the lock in `requirements/`."""
_SBOM = "/app/sbom.cdx.json"
# Nothing is started, which would need a network.
_READ = """
container=$(buildah from --pull-never "$1") || exit
trap 'buildah rm "$container" >&2' EXIT
folder=$(buildah mount "$container") && cat "$folder$2"
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, build, and print what was made."""
    parser = argparse.ArgumentParser(prog="python -m deploy.image", description=__doc__)
    parser.add_argument("--flavour", choices=LOCKS, default="cpu")
    parser.add_argument("--engine", choices=["docker", "podman", "buildah"], default="docker")
    about = "an option of the engine's build, such as secret=id=pip,src=pip.conf; may be repeated"
    parser.add_argument("--opt", action="append", default=[], metavar="KEY=VALUE", help=about)
    chosen = parser.parse_args(arguments)
    name = f"assay:{project_version()}-{chosen.flavour}"
    folder = ROOT / "build" / "image"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("BENTOML_HOME", str(ROOT / "build" / "bentoml"))
    Path(os.environ["BENTOML_HOME"]).mkdir(parents=True, exist_ok=True)

    bill = folder / f"sbom-{chosen.flavour}.cdx.json"
    try:
        bento = build_bento(chosen.flavour)
        build_image(bento, name, engine=chosen.engine, options=chosen.opt)
        bill.write_bytes(read_file(chosen.engine, name, _SBOM))
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{name} was not made: {_first_line(error)}", file=sys.stderr)
        return 1
    print(f"{bento.name} is in {name}; its bill of materials is {bill.relative_to(ROOT)}")
    return 0


def _first_line(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"{shlex.join(error.cmd[:2])} ended with status {error.returncode}"
    return str(error).partition("\n")[0]


def project_version() -> str:
    """The version in pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def revision() -> str:
    """The commit that is checked out; `unknown` outside a repository, marked when files differ."""
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return told.stdout.strip() or "unknown"


def bentofile(flavour: str) -> str:
    """What the bento of a flavour holds: `bentofile.yaml` with its lock and its name."""
    text = (ROOT / "bentofile.yaml").read_text()
    torch = (f"/torch-{each}.txt" for each in ("cpu", flavour))
    own = (f"/{LOCKS[each]}" for each in ("cpu", flavour))
    for cpu, given in (torch, own, ("FLAVOUR: cpu", f"FLAVOUR: {flavour}")):
        text = text.replace(cpu, given)
    return text


def build_bento(flavour: str) -> Path:
    """Build the bento of a flavour and return its folder."""
    path = ROOT / "build" / "image" / f"bentofile-{flavour}.yaml"
    path.write_text(bentofile(flavour))
    command = [sys.executable, "-m", "bentoml", "build", ".", "--output", "tag"]
    command += ["--bentofile", str(path)]
    built = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    name, _, version = built.stdout.strip().removeprefix("__tag__:").partition(":")
    return Path(os.environ["BENTOML_HOME"]) / "bentos" / name / version


def build_image(bento: Path, name: str, *, engine: str, options: Sequence[str]) -> None:
    """Build the image `name` of a bento; `options` of the engine are KEY=VALUE, paths absolute.

    Raises:
        CalledProcessError: the engine failed.
        OSError: there is no such engine.
    """
    # Health checks are part of Docker's format of images and not of OCI's; without being told,
    # Buildah makes one layer of everything.
    own = {"docker": [], "podman": ["format=docker"], "buildah": ["format=docker", "layers"]}
    given = [f"build-arg=VERSION={project_version()}", f"build-arg=REVISION={revision()}"]
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        stamp = "build-arg=SOURCE_DATE_EPOCH" if engine == "docker" else "timestamp"
        given.append(f"{stamp}={epoch}")
    command = [engine, "build", "--tag", name, "--file", str(bento / "env/docker/Dockerfile")]
    command += [f"--{option}" for option in [*own[engine], *given, *options]]
    subprocess.run([*command, str(bento)], check=True)


def read_file(engine: str, image: str, path: str) -> bytes:
    """A file of an image, which is not started for it.

    Raises:
        CalledProcessError: there is no such image or no such file.
    """
    if engine == "buildah":
        return _output(*_as_root(), "sh", "-c", _READ, "sh", image, path)
    container = _output(engine, "create", image).decode().strip()
    try:
        archive = _output(engine, "cp", f"{container}:{path}", "-")
        return _output("tar", "--extract", "--to-stdout", given=archive)
    finally:
        _output(engine, "rm", container)


def _as_root() -> list[str]:
    """What lets a user without privileges mount a container of Buildah."""
    return ["buildah", "unshare"] if os.geteuid() else []


def _output(*command: str, given: bytes | None = None) -> bytes:
    return subprocess.run(command, input=given, check=True, stdout=subprocess.PIPE).stdout


if __name__ == "__main__":
    sys.exit(main())
