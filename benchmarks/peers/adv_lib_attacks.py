"""Runs attacks of adversarial-library, on the PyTorch model of an artifact, and counts gradients.

`python -m benchmarks.peers.adv_lib_attacks CASE.npz FOUND.npz` reads images, labels, the artifact's
folder, the name of an attack, the steps, the radius where it has one, the seed and the size of a
batch. It writes the images that the attack returns, and how many gradients and other evaluations it
took an image. The library lies on PYTHONPATH; its import names torchvision and
visdom, which no attack here uses: empty modules stand in.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robustness.attacks.tensors import attackable
from runtimes.artifact import open_artifact
from runtimes.torch_model import load_torch_model

for _name in ("torchvision", "torchvision.models", "visdom"):
    sys.modules[_name] = ModuleType(_name)
setattr(sys.modules["torchvision"], "models", sys.modules["torchvision.models"])  # noqa: B010

import adv_lib.attacks as theirs  # noqa: E402  # pyright: ignore[reportMissingImports]

_FAR = float("inf")


class Counted(nn.Module):
    """A model that counts gradients and other evaluations."""

    def __init__(self, ask: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._ask, self.gradients, self.others = ask, 0, 0

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) from pixels (B, C, H, W)."""
        if images.requires_grad:
            self.gradients += len(images)
        else:
            self.others += len(images)
        return self._ask(images)


def attacks(steps: int, eps: float) -> dict[str, Callable[..., Tensor]]:
    """The library's attacks by our names, with its defaults but for steps, radius and rounding."""
    fmn, pdpgd, alma = theirs.fmn, theirs.pdpgd, theirs.alma
    ball: dict[str, Any] = {"eps": eps, "norm": _FAR, "n_iter": steps}
    return {
        "L2 ddn": partial(theirs.ddn, steps=steps, levels=None),
        "L2 fmn": partial(fmn, norm=2, steps=steps),
        "L2 pdgd": partial(theirs.pdgd, num_steps=steps),
        "L2 alma": partial(alma, distance="l2", num_steps=steps),
        "Linf fmn": partial(fmn, norm=_FAR, steps=steps),
        "Linf pdpgd": partial(pdpgd, norm=_FAR, num_steps=steps),
        "L1 fmn": partial(fmn, norm=1, steps=steps),
        "L1 pdpgd": partial(pdpgd, norm=1, num_steps=steps),
        "L1 alma": partial(alma, distance="l1", num_steps=steps),
        "L0 sigma-zero": partial(theirs.sigma_zero, num_steps=steps),
        "L0 fmn": partial(fmn, norm=0, steps=steps),
        "L0 pdpgd": partial(pdpgd, norm=0, num_steps=steps, proximal_operator=23),
        "apgd-ce": partial(theirs.apgd, loss_function="ce", **ball),
        "apgd-t": partial(theirs.apgd_targeted, **ball),
    }


def main(case: str, output: str) -> None:
    """Run the attack of a case."""
    given = np.load(case)
    torch.set_num_threads(1)
    module = load_torch_model(open_artifact(Path(str(given["artifact"]))))
    module.requires_grad_(False)
    attack = attacks(int(given["steps"]), float(given["eps"]))[str(given["name"])]
    images, labels = torch.from_numpy(given["images"]), torch.from_numpy(given["labels"])
    made = []
    with attackable(module) as ask:
        model = Counted(ask)
        for part in torch.arange(len(images)).split(int(given["batch"])):
            torch.manual_seed(int(given["seed"]))
            made.append(attack(model, images[part], labels[part]).detach())
    counts = np.array([model.gradients, model.others]) / len(images)
    np.savez(output, images=torch.cat(made).numpy(), counts=counts)


if __name__ == "__main__":
    main(*sys.argv[1:])
