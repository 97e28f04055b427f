"""`python -m deploy.smoke URL`: ask a running service for everything once.

Needs nothing but httpx. It takes its inputs from the service itself, says what it has seen, and
exits with 1 at the first answer that is wrong. `--expect ID` looks again for an evaluation of an
earlier run, `--until-stopped` predicts until the server stops and says whether it let anybody down.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

_SPEC = {"attacks": [{"name": "fgsm", "eps": ["8/255"]}, {"name": "pgd", "eps": ["2/255"]}]}
_TEXTS = ["A moving film, brilliantly acted.", "Dull from the first minute to the last."]


class SmokeError(Exception):
    """The service answered otherwise than it should; the message says where and what."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run the checks, print what they saw."""
    parser = argparse.ArgumentParser(prog="python -m deploy.smoke", description=__doc__)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:3000")
    parser.add_argument("--key", help="API key with the scopes predict and evaluate")
    parser.add_argument("--wait", type=float, default=60, help="seconds until it must be ready")
    parser.add_argument("--samples", type=int, default=10, help="images of the evaluation")
    parser.add_argument("--expect", metavar="ID", help="an evaluation that must still be there")
    parser.add_argument("--until-stopped", action="store_true")
    chosen = parser.parse_args(arguments)
    headers = {"authorization": f"Bearer {chosen.key}"} if chosen.key else {}
    with httpx.Client(base_url=chosen.url, headers=headers, timeout=60) as client:
        try:
            print(f"ready after {wait_ready(client, chosen.wait):.1f} s", flush=True)
            if chosen.until_stopped:
                print(predict_until_stopped(client), flush=True)
            elif chosen.expect:
                print(check_report(client, f"/v1/evaluations/{chosen.expect}"), flush=True)
            else:
                pictures = fetch_samples(client, chosen.samples)
                print(check_images(client, pictures), flush=True)
                print(check_texts(client), flush=True)
                print(check_open_protocol(client), flush=True)
                print(check_evaluation(client, pictures), flush=True)
        except (SmokeError, httpx.HTTPError) as error:
            print(f"FAILED: {error or type(error).__name__}", flush=True)
            return 1
    return 0


def wait_ready(client: httpx.Client, seconds: float) -> float:
    """Wait until `/readyz` answers 200, and return the seconds that it took.

    Raises:
        SmokeError: it is not ready in time.
    """
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        try:
            if client.get("/readyz", timeout=5).status_code == 200:
                return time.monotonic() - begin
        except httpx.TransportError:
            pass  # the server is not listening yet
        time.sleep(0.1)
    raise SmokeError(f"/readyz did not answer 200 within {seconds:g} s")


def fetch_samples(client: httpx.Client, count: int) -> list[tuple[str, bytes]]:
    """File name and content of sample images that the service itself offers."""
    listed = _json(client.get("/samples/index.json"))
    step = max(1, len(listed) // count)
    names = [sample["file"] for sample in listed[::step]][:count]
    return [(name, _good(client.get(f"/samples/{name}")).content) for name in names]


def check_images(client: httpx.Client, pictures: Sequence[tuple[str, bytes]]) -> str:
    """One request to `/classify` with all pictures; see `SmokeError`."""
    answer = _json(client.post("/classify", files=[("images", each) for each in pictures]))
    if len(answer) != len(pictures) or not all(0 < each["probability"] <= 1 for each in answer):
        raise SmokeError(f"/classify answered {len(pictures)} images with {answer}")
    return f"classified {len(answer)} images with {answer[0]['model']}: {answer[0]['label']}, ..."


def check_texts(client: httpx.Client) -> str:
    """One request to `/classify_text`; see `SmokeError`."""
    answer = _json(client.post("/classify_text", json={"texts": _TEXTS}))
    if len(answer) != len(_TEXTS):
        raise SmokeError(f"/classify_text answered {len(_TEXTS)} texts with {answer}")
    return f"classified texts with {answer[0]['model']}: {[each['label'] for each in answer]}"


def check_open_protocol(client: httpx.Client) -> str:
    """Readiness, metadata and one inference of every model over V2; see `SmokeError`."""
    _good(client.get("/v2/health/ready"))
    found = _json(client.get("/v1/models"))
    names = [model["name"] for model in found if model["kind"] != "remote"]
    for name in names:
        inputs = _json(client.get(f"/v2/models/{name}"))["inputs"]
        body = {"inputs": [_blank(each) for each in inputs]}
        outputs = _json(client.post(f"/v2/models/{name}/infer", json=body))["outputs"]
        if "logits" not in {output["name"] for output in outputs}:
            raise SmokeError(f"/v2/models/{name}/infer answered no logits")
    return f"inferred with {len(names)} models over the Open Inference Protocol"


def _blank(tensor: dict[str, Any]) -> dict[str, Any]:
    """A tensor of one text or one grey image, as a model's metadata describes it."""
    shape = [max(size, 1) for size in tensor["shape"]]
    data = _TEXTS[:1] if tensor["datatype"] == "BYTES" else [0.5] * math.prod(shape)
    return {"name": tensor["name"], "datatype": tensor["datatype"], "shape": shape, "data": data}


def check_evaluation(client: httpx.Client, pictures: Sequence[tuple[str, bytes]]) -> str:
    """A whole evaluation from upload to report; see `SmokeError`."""
    files = [("images", each) for each in pictures]
    created = client.post("/v1/evaluations", data={"spec": json.dumps(_SPEC)}, files=files)
    if created.status_code != 202:
        raise SmokeError(f"POST /v1/evaluations answered {created.status_code}: {created.text}")
    place = created.headers["location"]
    begin = time.monotonic()
    while _json(client.get(place, params={"wait": 10}))["status"] in ("queued", "running"):
        if time.monotonic() - begin > 300:
            raise SmokeError(f"{place} did not end within 300 s")
    return check_report(client, place)


def check_report(client: httpx.Client, place: str) -> str:
    """The result of an evaluation, its report in both forms, and a picture; see `SmokeError`."""
    job = _json(client.get(place))
    if job["status"] != "succeeded":
        raise SmokeError(f"{place} is {job['status']}: {job.get('error')}")
    report = _json(client.get(f"{place}/report.json"))
    if report["summary"] != job["result"]:
        raise SmokeError(f"{place} and its report tell different results")
    page = _good(client.get(f"{place}/report.html")).text
    picture = _good(client.get(f"{place}/samples/0/adversarial.png")).content
    if "</html>" not in page or not picture.startswith(b"\x89PNG"):
        raise SmokeError(f"{place} has a broken report or picture")
    model = job["result"]["models"][0]
    worst = {eps: figure["top1"] for eps, figure in model["worst"].items()}
    return f"evaluated {model['samples']} images, worst case {worst}: evaluation {job['id']}"


def predict_until_stopped(client: httpx.Client) -> str:
    """Predict over four connections until `/readyz` no longer says 200, as a load balancer sees it.

    Raises:
        SmokeError: a prediction was broken off or answered with an error, or the server was gone
            before `/readyz` had said so.
    """
    picture = fetch_samples(client, 1)[0]
    with ThreadPoolExecutor(4) as threads:
        counts = [threads.submit(_predict_until_stopped, client, picture) for _ in range(4)]
        answered = sum(count.result() for count in counts)
    return f"{answered} predictions answered, none broken off"


def _predict_until_stopped(client: httpx.Client, picture: tuple[str, bytes]) -> int:
    answered = 0
    while True:
        # A new connection each time: a server that drains takes no more requests over old ones.
        with httpx.Client(base_url=client.base_url, headers=client.headers, timeout=60) as once:
            try:
                if once.get("/readyz").status_code != 200:
                    return answered
                _good(once.post("/classify", files={"images": picture}))
            except httpx.TransportError as error:
                raise SmokeError(f"broken off while the server stopped: {error!r}") from error
        answered += 1


def _good(response: httpx.Response) -> httpx.Response:
    if response.status_code != 200:
        told = f"{response.status_code}: {response.text[:300]}"
        raise SmokeError(f"{response.request.url.path} answered {told}")
    return response


def _json(response: httpx.Response) -> Any:
    return _good(response).json()


if __name__ == "__main__":
    sys.exit(main())
