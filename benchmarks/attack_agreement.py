"""Do our attacks flag the images that torchattacks' kernels flag?

Each kernel is run plainly, on one batch of shipped images and two shipped models; then ours, where
fooled samples leave, with the kernel's own draws: not a single flag may differ. What the product's
draws find, one seed an image, stands in `attack_speed`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torchattacks
from torch import Tensor, nn

from benchmarks.support.rows import Row, figure
from benchmarks.support.server import ROOT
from core.stats import wilson
from data.sources import load_inputs, open_images
from robustness.attacks.base import LinfOrL2, Search
from robustness.attacks.gradient import GradientAttack
from robustness.attacks.queries import Oracle
from robustness.attacks.square_draws import (
    Draws,
    Moves,
    Shape,
    side_schedule,
    stripes,
    tiled,
    tiles,
)
from robustness.attacks.tensors import attackable
from robustness.spec import ATTACKS
from runtimes.artifact import Artifact, open_artifact
from runtimes.torch_model import load_torch_model

_RADII = {"fashion-dot": "4/255", "fashion-elliptical-adv": "24/255"}
"""Where about half of the images fall, so that flags can differ."""
_ATTACKS: tuple[str, ...] = ("fgsm", "pgd", "apgd-ce", "apgd-t", "fab-t", "square")
_EVERY = 5  # of the 300 sample images, ordered by class
_SEED = 0
_NUM_CLASSES = 10


class OneGenerator(Search):
    """One generator for all, which draws row by row what the kernel draws at once."""

    def generators(self) -> list[torch.Generator]:
        """The same one for each input."""
        return [torch.Generator().manual_seed(self.seeds[0])] * len(self.seeds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One attack on one model.

    Attributes:
        name: of the model.
        model: logits from pixels.
        images: (N, C, H, W) float32 in [0, 1].
        labels: (N,) int64.
        attack: at one radius.
    """

    name: str
    model: nn.Module
    images: Tensor
    labels: Tensor
    attack: Any  # of one of the classes in `ATTACKS`, at one radius

    @property
    def eps(self) -> float:
        """The radius."""
        return self.attack.budgets()[0].value

    def robust(self, adversarial: Tensor) -> np.ndarray:
        """Flags (N,): right on the clean image and on the adversarial one."""
        with torch.inference_mode():
            right = [self.model(x).argmax(1) == self.labels for x in (self.images, adversarial)]
        return (right[0] & right[1]).numpy()


def run() -> Iterable[Row]:
    """Compare flags for both models and all attacks; a row appears when its attack is done."""
    for model, eps in _RADII.items():
        artifact = open_artifact(ROOT / "artifacts" / model)
        images, labels = samples(artifact)
        for name in _ATTACKS:
            case = Case(
                name=model,
                model=load_torch_model(artifact),
                images=images[::_EVERY],
                labels=labels[::_EVERY],
                attack=ATTACKS[name].model_validate({"name": name, "eps": [eps]}),
            )
            yield compare(case)


def samples(artifact: Artifact) -> tuple[Tensor, Tensor]:
    """The shipped images as inputs (N, C, H, W) of an artifact, and their labels (N,)."""
    folder = ROOT / "artifacts" / "samples" / "fashion-mnist"
    images = open_images(folder, label_names=artifact.labels)
    if images.labels is None:
        raise ValueError(f"the images of {folder.name} must be labeled")
    inputs = load_inputs(images, artifact.image_spec)
    return torch.from_numpy(inputs), torch.from_numpy(images.labels)


def compare(case: Case) -> Row:
    """On how many images flags differ under the kernel's draws."""
    count = len(case.images)
    with torch.random.fork_rng([]):
        torch.manual_seed(_SEED)
        found = kernel(case.attack, case.model)(case.images, case.labels).detach()
    plain, same = case.robust(found), case.robust(_ours(case))
    what = f"{case.name}, {case.attack.name}, eps {case.attack.eps[0]}"
    different = int((same != plain).sum())
    return figure(
        f"{what}, the kernel's draws, images flagged otherwise; robust {plain.mean():.4f}",
        different,
        "images",
        target=0,
        samples=count,
        spread=[count * share for share in wilson(different, count)],
    )


def _ours(case: Case) -> Tensor:
    if isinstance(case.attack, GradientAttack):
        search = OneGenerator(seeds=[_SEED] * len(case.images))
        with attackable(case.model) as model:
            return case.attack.perturb(model, case.images, case.labels, case.eps, search)

    def predict(images: np.ndarray) -> np.ndarray:
        """Logits (N, K)."""
        with torch.inference_mode():
            return case.model(torch.from_numpy(images)).numpy()

    arrays = case.images.numpy(), case.labels.numpy()
    found = square_as_kernel(case.attack, Oracle(predict), *arrays, eps=case.eps, seed=_SEED)
    return torch.from_numpy(found)


def kernel(attack: Any, model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """The kernel as it is run plainly; PGD and SPSA draw from the generator of the caller."""
    budget = attack.budgets()[0]
    eps, steps = budget.value, attack.settings(budget).steps
    common = {"norm": attack.norm, "eps": eps, "n_restarts": 1, "seed": _SEED}
    targets = {"n_classes": _NUM_CLASSES}
    match attack.name:
        case "fgsm":
            return torchattacks.FGSM(model, eps=eps)
        case "pgd":
            return torchattacks.PGD(model, eps=eps, alpha=attack.step_size(eps), steps=steps)
        case "apgd-ce":
            return torchattacks.APGD(model, steps=steps, loss="ce", **common)
        case "apgd-t":
            return torchattacks.APGDT(model, steps=steps, **targets, **common)
        case "fab-t":
            more = {"alpha_max": 0.1, "multi_targeted": True}
            return torchattacks.FAB(model, steps=steps, **more, **targets, **common)
        case "spsa":
            more = {"nb_iter": attack.steps, "nb_sample": attack.samples}
            return torchattacks.SPSA(model, eps=eps, delta=0.01, lr=0.01, max_batch_size=64, **more)
        case _:
            more = {"n_queries": attack.queries, "resc_schedule": False}
            return torchattacks.Square(model, **more, **common)


def square_as_kernel(
    attack: Any, oracle: Oracle, images: np.ndarray, labels: np.ndarray, *, eps: float, seed: int
) -> np.ndarray:
    """What Square finds with the draws of torchattacks' kernel, on all images at once."""
    waiting = oracle.right(images, labels, len(images))
    draws = KernelDraws(images.shape[1:], attack.norm, attack.queries, seed, waiting)
    return attack.search(oracle, images, labels, waiting, draws, eps=eps, seats=len(waiting))


class KernelDraws(Draws):
    """The very draws that the kernel of torchattacks makes for one batch, in its order.

    All images share each square, which never touches the last row and column (of an image larger
    than it). All must be seated first and be at the same step ever after.

    Args:
        shape: (C, H, W).
        norm: of the attack.
        queries: number of moves.
        seed: of the kernel.
        attacked: (N',) the images that the kernel attacks, in order.
    """

    def __init__(
        self, shape: Shape, norm: LinfOrL2, queries: int, seed: int, attacked: np.ndarray
    ) -> None:
        self._shape, self._norm = shape, norm
        self._sides = side_schedule(shape, norm, queries)
        self._generator = torch.Generator().manual_seed(seed)
        self._rank = {int(image): rank for rank, image in enumerate(attacked)}
        if norm == "Linf":
            self._start = self._choice(len(attacked), shape[0], 1, shape[2])
            return
        _, rows, columns = tiles(shape)
        draws = [
            (self._uniform() > 0.5, self._choice(len(attacked), shape[0]))
            for _ in range(len(rows) * len(columns))
        ]
        self._start = np.stack([signs for _, signs in draws], axis=1)  # (N', tiles, C)
        self._start_turned = np.array([turned for turned, _ in draws])

    def start(self, image: int, seat: int) -> np.ndarray:
        """See `Draws.start`."""
        drawn = self._start[self._rank[image]]
        if self._norm == "Linf":
            return stripes(drawn, self._shape[1])
        return tiled(self._shape, drawn, self._start_turned)

    def moves(self, seats: np.ndarray, steps: np.ndarray) -> Moves:
        """See `Draws.moves`."""
        channels, height, width = self._shape
        if not len(steps):
            return Moves(
                steps, np.zeros((0, 4), int), np.zeros((0, channels), np.float32), steps > 0
            )
        side, linf = int(self._sides[steps[0]]), self._norm == "Linf"
        room = [height - side, width - side] * (1 if linf else 2)
        places = [int(free * self._uniform()) for free in room]
        turned = not linf and self._uniform() > 0.5
        signs = self._choice(1 if linf else len(seats), channels)
        return Moves(
            np.full(len(seats), side),
            np.tile(np.array(places), (len(seats), 1)),
            np.broadcast_to(signs, (len(seats), channels)),
            np.full(len(seats), turned),
        )

    def _uniform(self) -> np.float32:
        return torch.rand(1, generator=self._generator).numpy()[0]

    def _choice(self, *shape: int) -> np.ndarray:
        drawn = torch.rand(shape, generator=self._generator).numpy()
        return np.sign(2 * drawn - 1)
