"""Classify images with BentoML's own client: `python deploy/clients/with_bentoml.py IMAGE...`."""

import argparse
from pathlib import Path
from typing import Any

import bentoml


def classify(url: str, images: list[Path], *, key: str | None = None) -> list[dict[str, Any]]:
    """Predictions of image files, in their order.

    Raises:
        BentoMLException: the service refused; its message is the service's answer.
    """
    with bentoml.SyncHTTPClient(url, token=key) as client:
        return client.call("classify", images=images, top_k=3)


def main() -> None:
    """Parse, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", nargs="+", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:3000")
    parser.add_argument("--key")
    chosen = parser.parse_args()
    answers = classify(chosen.url, chosen.images, key=chosen.key)
    for path, answer in zip(chosen.images, answers, strict=True):
        print(f"{path}: {answer['label']} ({answer['probability']:.1%}), {answer['model']}")


if __name__ == "__main__":
    main()
