"""`python -m deploy.image`: build the bento, its container image, and bring out the SBOM."""

import argparse
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
LOCKS = {"cpu": "cpu.txt", "cuda": "gpu.txt"}
"""By flavour, the lock in `requirements/`."""
_SBOM = "/app/sbom.cdx.json"


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

    tag = build_bento(chosen.flavour)
    containerize(tag, name, engine=chosen.engine, options=chosen.opt)
    bill = folder / f"sbom-{chosen.flavour}.cdx.json"
    bill.write_bytes(read_file(chosen.engine, name, _SBOM))
    print(f"{tag} is in {name}; its bill of materials is {bill.relative_to(ROOT)}")
    return 0


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
    for cpu, own in (("/cpu.txt", f"/{LOCKS[flavour]}"), ("FLAVOUR: cpu", f"FLAVOUR: {flavour}")):
        text = text.replace(cpu, own)
    return text


def build_bento(flavour: str) -> str:
    """Build the bento of a flavour and return its tag."""
    path = ROOT / "build" / "image" / f"bentofile-{flavour}.yaml"
    path.write_text(bentofile(flavour))
    command = [sys.executable, "-m", "bentoml", "build", ".", "--output", "tag"]
    command += ["--bentofile", str(path)]
    built = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return built.stdout.strip().removeprefix("__tag__:")


def containerize(tag: str, name: str, *, engine: str, options: Sequence[str]) -> None:
    """Build the image `name` of a bento; `options` of the engine are KEY=VALUE, paths absolute.

    Raises:
        CalledProcessError: the engine failed.
    """
    # Health checks are part of Docker's format of images and not of OCI's.
    own = [] if engine == "docker" else ["format=docker"]
    own += [f"build-arg=VERSION={project_version()}", f"build-arg=REVISION={revision()}"]
    command = [sys.executable, "-m", "bentoml", "containerize", tag]
    command += ["--backend", engine, "--image-tag", name]
    for option in [*own, *options]:
        command += ["--opt", option]
    # BentoML 1.4.39 unpacks the bento into TMPDIR and then refuses to read the Dockerfile's
    # template there, unless it lies below the current directory.
    with TemporaryDirectory(dir=ROOT / "build" / "image") as folder:
        environment = os.environ | {"TMPDIR": folder}
        subprocess.run(command, cwd=folder, env=environment, check=True)


def read_file(engine: str, image: str, path: str) -> bytes:
    """A file of an image, which is not started for it.

    Raises:
        CalledProcessError: there is no such image or no such file.
    """
    if engine == "buildah":
        container = _output("buildah", "from", "--pull-never", image).decode().strip()
        try:
            return _output("buildah", "run", container, "--", "cat", path)
        finally:
            _output("buildah", "rm", container)
    container = _output(engine, "create", image).decode().strip()
    try:
        archive = _output(engine, "cp", f"{container}:{path}", "-")
        return _output("tar", "--extract", "--to-stdout", given=archive)
    finally:
        _output(engine, "rm", container)


def _output(*command: str, given: bytes | None = None) -> bytes:
    return subprocess.run(command, input=given, check=True, stdout=subprocess.PIPE).stdout


if __name__ == "__main__":
    sys.exit(main())
