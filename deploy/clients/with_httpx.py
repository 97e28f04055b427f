"""Put a model under evaluation from a pipeline, with httpx alone.

`python deploy/clients/with_httpx.py FOLDER --gate "robust_accuracy >= 0.4"`, where FOLDER holds
`class/name.png`. Exits with 0 when the gate held, 1 when it failed, 2 when there is no result.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx


def evaluate(client: httpx.Client, folder: Path, spec: dict[str, Any]) -> dict[str, Any]:
    """Upload a folder of images, wait for the evaluation, and return it.

    Raises:
        FileNotFoundError: the folder holds no image.
        httpx.HTTPError: the service cannot be reached, or refused the evaluation.
    """
    paths = sorted(folder.glob("*/*.png"))
    if not paths:
        raise FileNotFoundError(f"{folder} holds no class/name.png")
    files = [("images", (path.name, path.read_bytes(), "image/png")) for path in paths]
    form = {"spec": json.dumps(spec), "labels": json.dumps([path.parent.name for path in paths])}
    headers = {"idempotency-key": str(uuid4())}  # asked again, it is the same evaluation
    created = _accepted(client, data=form, files=files, headers=headers)
    place = created.headers["location"]
    while True:
        job = client.get(place, params={"wait": 20}).raise_for_status().json()
        if job["status"] not in ("queued", "running"):
            return job
        progress = job["progress"]
        print(f"{progress['done']} of {progress['total']}: {progress['stage']}", file=sys.stderr)


def _accepted(client: httpx.Client, **request: Any) -> httpx.Response:
    """The answer to an upload; a full queue is asked again when it said so."""
    while True:
        response = client.post("/v1/evaluations", **request)
        if response.status_code not in (429, 503):
            return response.raise_for_status()
        time.sleep(float(response.headers.get("retry-after", "5")))


def main() -> int:
    """Parse, evaluate, print, and save the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:3000")
    parser.add_argument("--key", help="API key")
    parser.add_argument("--model", default="fashion-elliptical")
    parser.add_argument("--eps", nargs="+", default=["2/255"])
    parser.add_argument("--gate", default="robust_accuracy >= 0.4")
    parser.add_argument("--output", type=Path, default=Path("report.html"))
    chosen = parser.parse_args()
    attacks = [{"name": "pgd", "eps": chosen.eps, "steps": 20}]
    spec = {"model": chosen.model, "attacks": attacks, "gate": chosen.gate}
    headers = {"authorization": f"Bearer {chosen.key}"} if chosen.key else {}
    with httpx.Client(base_url=chosen.url, headers=headers, timeout=120) as client:
        try:
            job = evaluate(client, chosen.folder, spec)
            if job["status"] != "succeeded":
                print(f"{job['status']}: {job.get('error')}", file=sys.stderr)
                return 2
            page = client.get(f"/v1/evaluations/{job['id']}/report.html").raise_for_status()
        except httpx.HTTPStatusError as refused:
            print(f"refused: {refused.response.text}", file=sys.stderr)
            return 2
        except (httpx.HTTPError, OSError) as error:
            print(f"no answer from {chosen.url}: {error}", file=sys.stderr)
            return 2
    chosen.output.write_bytes(page.content)
    gate = job["result"]["gate"]
    print(f"{json.dumps(gate)}; the report is {chosen.output}")
    return 0 if gate["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
