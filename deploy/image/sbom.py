"""Complete the bill of materials of the image's Python packages.

`cyclonedx-py` knows the packages of an environment. Added here are the Debian packages of the
base image, the models that the image serves, and what all of it makes up. Runs while the image is
built, beside `cyclonedx-py`, so it needs nothing else.
"""

import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

Component = dict[str, Any]


def debian_packages() -> list[Component]:
    """The installed Debian packages; none where there is no dpkg."""
    form = "${Package}\t${Version}\t${Architecture}\n"
    try:
        listed = subprocess.check_output(["dpkg-query", "--show", f"--showformat={form}"])
    except FileNotFoundError:
        return []
    rows = (line.split("\t") for line in listed.decode().splitlines())
    return [_debian(*row) for row in rows]


def _debian(name: str, version: str, architecture: str) -> Component:
    escaped = version.replace(":", "%3A").replace("+", "%2B")
    purl = f"pkg:deb/debian/{name}@{escaped}?arch={architecture}"
    return {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}


def models(artifacts: Path) -> list[Component]:
    """The artifacts in a folder, each with its digest, which is the sha256 of its manifest."""
    return [_model(path) for path in sorted(artifacts.glob("*/manifest.json"))]


def _model(manifest: Path) -> Component:
    content = manifest.read_bytes()
    told = json.loads(content)
    digest = sha256(content).hexdigest()
    return {
        "type": "machine-learning-model",
        "name": told["name"],
        "version": str(told["version"]),
        "hashes": [{"alg": "SHA-256", "content": digest}],
        "bom-ref": f"model:{told['name']}@{told['version']}",
    }


def complete(bill: dict[str, Any], *, bento: Path) -> dict[str, Any]:
    """Add to a CycloneDX document what `cyclonedx-py` cannot see.

    Args:
        bill: the document about the Python packages.
        bento: folder of the bento in the image.
    """
    added = [*debian_packages(), *models(bento / "src" / "artifacts")]
    subject = {"type": "container", "name": "assay", "bom-ref": "assay"}
    metadata = bill.get("metadata", {}) | {"component": subject}
    return bill | {"metadata": metadata, "components": bill["components"] + added}


def main(source: Path, bento: Path, target: Path) -> None:
    """Read the document at `source` and write the completed one to `target`.

    Raises:
        ValueError: the result is not valid CycloneDX.
    """
    text = json.dumps(complete(json.loads(source.read_text()), bento=bento), indent=1)
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if wrong is not None:
        raise ValueError(f"the bill of materials must be valid CycloneDX 1.6: {wrong}")
    target.write_text(text)


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
