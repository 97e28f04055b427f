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
    found = []
    for name, version, architecture in (line.split("\t") for line in listed.decode().splitlines()):
        escaped = version.replace(":", "%3A").replace("+", "%2B")
        purl = f"pkg:deb/debian/{name}@{escaped}?arch={architecture}"
        described = {"type": "library", "name": name, "version": version}
        found.append(described | {"purl": purl, "bom-ref": purl})
    return found


def models(artifacts: Path) -> list[Component]:
    """The artifacts in a folder, each with its digest, which is the sha256 of its manifest."""
    found = []
    for path in sorted(artifacts.glob("*/manifest.json")):
        content = path.read_bytes()
        told = json.loads(content)
        name, version = told["name"], str(told["version"])
        described = {"type": "machine-learning-model", "name": name, "version": version}
        hashes = [{"alg": "SHA-256", "content": sha256(content).hexdigest()}]
        found.append(described | {"hashes": hashes, "bom-ref": f"model:{name}@{version}"})
    return found


def main(source: Path, bento: Path, target: Path) -> None:
    """Complete what `cyclonedx-py` says at `source` and write it to `target`.

    Raises:
        ValueError: the result is not valid CycloneDX.
    """
    bill = json.loads(source.read_text())
    bill["components"] += [*debian_packages(), *models(bento / "src" / "artifacts")]
    subject = {"type": "container", "name": "assay", "bom-ref": "assay"}
    bill["metadata"] = bill.get("metadata", {}) | {"component": subject}
    text = json.dumps(bill, indent=1)
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if wrong is not None:
        raise ValueError(f"the bill of materials must be valid CycloneDX 1.6: {wrong}")
    target.write_text(text)


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
