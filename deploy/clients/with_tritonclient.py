"""Speak the Open Inference Protocol with the unmodified client of Triton.

`python deploy/clients/with_tritonclient.py --model fashion-elliptical IMAGE...`
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.http as triton
from PIL import Image
from tritonclient.utils import InferenceServerException


def infer(
    address: str, model: str, images: list[Path], *, key: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Logits and probabilities of image files, (B, K) float32 each; `address` is `host:port`.

    Raises:
        InferenceServerException: the service refused.
        OSError: nothing listens at the address, or a file cannot be read.
    """
    headers = {"authorization": f"Bearer {key}"} if key else {}
    client = triton.InferenceServerClient(address)
    try:
        described: Any = client.get_model_metadata(model, headers=headers)
        tensor = described["inputs"][0]
        pixels = np.stack([_pixels(path, tensor["shape"]) for path in images])
        given = triton.InferInput(tensor["name"], list(pixels.shape), "FP32")
        given.set_data_from_numpy(pixels)
        wanted = [triton.InferRequestedOutput(name) for name in ("logits", "probabilities")]
        answer: Any = client.infer(model, [given], outputs=wanted, headers=headers)
        return answer.as_numpy("logits"), answer.as_numpy("probabilities")
    finally:
        client.close()


def _pixels(path: Path, shape: list[int]) -> np.ndarray:
    """(C, H, W) float32 in [0, 1]."""
    _, channels, height, width = shape
    image = Image.open(path).convert("L" if channels == 1 else "RGB").resize((width, height))
    values = np.asarray(image, dtype=np.float32) / 255
    return values[None] if channels == 1 else values.transpose(2, 0, 1)


def main() -> None:
    """Parse, infer, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", nargs="+", type=Path)
    parser.add_argument("--address", default="127.0.0.1:3000")
    parser.add_argument("--model", default="fashion-elliptical")
    parser.add_argument("--key")
    chosen = parser.parse_args()
    if missing := [path for path in chosen.images if not path.is_file()]:
        parser.exit(2, f"no such file: {missing[0]}\n")
    try:
        _, probabilities = infer(chosen.address, chosen.model, chosen.images, key=chosen.key)
    except (InferenceServerException, OSError) as error:
        parser.exit(2, f"no answer from {chosen.address}: {error}\n")
    for path, row in zip(chosen.images, probabilities, strict=True):
        print(f"{path}: class {row.argmax()} ({row.max():.1%})")


if __name__ == "__main__":
    main()
