"""Classify images with BentoML's own client: `python deploy/clients/with_bentoml.py IMAGE...`."""

import argparse
from pathlib import Path
from typing import Any

import bentoml
from bentoml.exceptions import BentoMLException


def classify(url: str, images: list[Path], *, key: str | None = None) -> list[dict[str, Any]]:
    """Predictions of image files, in their order.

    Raises:
        BentoMLException: the service refused; its message is the service's answer; or it is not
            ready within five seconds.
    """
    with bentoml.SyncHTTPClient(url, token=key, server_ready_timeout=5) as client:
        return client.call("classify", images=images, top_k=3)


def main() -> None:
    """Parse, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", nargs="+", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:3000")
    parser.add_argument("--key")
    chosen = parser.parse_args()
    if missing := [path for path in chosen.images if not path.is_file()]:
        parser.exit(2, f"no such file: {missing[0]}\n")
    try:
        answers = classify(chosen.url, chosen.images, key=chosen.key)
    except BentoMLException as error:
        parser.exit(2, f"no answer from {chosen.url}: {error}\n")
    for path, answer in zip(chosen.images, answers, strict=True):
        print(f"{path}: {answer['label']} ({answer['probability']:.1%}), {answer['model']}")


if __name__ == "__main__":
    main()
