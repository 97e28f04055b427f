import pytest
import torch

from training.augment.pipeline import mix
from training.draws import Draws, source

LABELS = torch.tensor([0, 1, 2, 2, 1, 0])


def batch() -> torch.Tensor:
    """Images of one value each, that of their place."""
    return torch.arange(6.0).view(6, 1, 1, 1).expand(6, 1, 8, 10)


def mixed(step: int, *, mixup: float = 0.0, cutmix: float = 0.0) -> tuple[torch.Tensor, ...]:
    draws = Draws(source(0, "augment", step), 6)
    return mix(batch(), LABELS, num_classes=3, mixup=mixup, cutmix=cutmix, draws=draws)


def test_mixup_mixes_neighbors_and_their_labels_by_one_share() -> None:
    images, targets = mixed(0, mixup=0.8)
    share = float(1 - images[0].mean())  # image 0 is 0 * share + 1 * (1 - share)
    assert 0 < share < 1
    expected = torch.tensor([1 - share, share, 3 - share, 2 + share, 5 - share, 4 + share])
    assert torch.allclose(images, expected.view(6, 1, 1, 1).expand_as(images))
    assert torch.allclose(targets[0], torch.tensor([share, 1 - share, 0]))
    assert torch.allclose(targets[2], torch.tensor([0.0, 0, 1]))


@pytest.mark.parametrize("step", range(5))
def test_cutmix_pastes_a_box_and_shares_labels_by_its_area(step: int) -> None:
    images, targets = mixed(step, cutmix=1.0)
    pasted = (images[0] == 1.0).float().mean()
    assert torch.equal(images.unique(), torch.arange(6.0))
    assert torch.allclose(targets[0], torch.stack((1 - pasted, pasted, pasted * 0)))
    box = (images[0, 0] == 1.0).nonzero()
    if len(box):
        height, width = (box.amax(0) - box.amin(0) + 1).tolist()
        assert len(box) == height * width


def test_both_take_turns() -> None:
    kinds = [len(mixed(step, mixup=0.8, cutmix=1.0)[0].unique()) for step in range(40)]
    # Mixup leaves one value an image, CutMix those of both neighbors in each.
    boxes = sum(len(mixed(s, mixup=0.8, cutmix=1.0)[0][0].unique()) > 1 for s in range(40))
    assert 5 < boxes < 35 and set(kinds) == {6}


def test_targets_sum_to_one() -> None:
    for step in range(10):
        assert torch.allclose(mixed(step, mixup=0.8, cutmix=1.0)[1].sum(1), torch.ones(6))
