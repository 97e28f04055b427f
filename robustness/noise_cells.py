"""Corrupted and noisy images: what the served model says to them, and what can be proved."""

import numpy as np

from robustness.attacks.corruptions import corrupt
from robustness.certificates.smoothing import certify
from robustness.context import Block, Trial
from robustness.logits import label_rank
from robustness.parsing import parse_eps
from robustness.scoring import CertificateVerdict, CorruptionVerdict
from robustness.spec import Cell
from robustness.store import input_seed
from robustness.target import Target, predict_served


def corruption_cell(trial: Trial, target: Target, block: Block, cell: Cell) -> CorruptionVerdict:
    """Judge one range of images with one corruption at one severity.

    The corrupted images are not kept: they follow from seed and image alone.
    """
    trial.say(f"{cell.point}, image {block.start + len(block.images)}")
    name, severity = cell.point.split(":")
    trial.meter.before()
    corrupted = corrupted_inputs(block.images, name, int(severity), seed=trial.spec.seed)
    with trial.meter.allot(len(block.images)):
        logits = predict_served(target, corrupted, trial.meter)
    return CorruptionVerdict(
        rank=label_rank(logits, block.clean.label), index=logits.argmax(axis=1)
    )


def corrupted_inputs(inputs: np.ndarray, name: str, severity: int, *, seed: int) -> np.ndarray:
    """Inputs (n, C, H, W) float32 in [0, 1] with a corruption, at the model's size, in 8 bit."""
    pixels = np.rint(inputs * 255).astype(np.uint8)
    found = [
        corrupt(
            image,
            name,
            severity,
            np.random.default_rng(input_seed(seed, f"{name}:{severity}", image.tobytes())),
        )
        for image in pixels
    ]
    return np.stack(found).astype(np.float32) / np.float32(255)


def certificate_cell(trial: Trial, target: Target, block: Block, cell: Cell) -> CertificateVerdict:
    """Certify one range of images under noise of one standard deviation."""
    trial.say(f"smoothing {cell.point}, image {block.start + len(block.images)}")
    attack = cell.attack
    with trial.meter.allot(len(block.images) * attack.evaluations(trial.num_classes)):
        found = certify(
            lambda images: predict_served(target, images),
            block.images,
            sigma=parse_eps(cell.point, name="sigma", limit=10.0),
            samples=attack.setting("samples"),
            alpha=parse_eps(attack.setting("alpha"), name="alpha"),
            seeds=block.seeds(trial.spec.seed, attack),
            meter=trial.meter,
        )
    return CertificateVerdict(index=np.where(found.abstained, -1, found.index), radius=found.radius)
