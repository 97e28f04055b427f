"""A model that another thread uses while it is observed."""

import threading
from typing import Any

import pytest
import torch

import models
from models.analysis.diagnostics import diagnose
from models.analysis.observation import observe

SMALL = {"img_size": 16, "patch_size": 4, "in_chans": 1, "num_classes": 5, "depth": 3}
SMALL |= {"embed_dim": 32, "num_heads": 2}


@pytest.mark.parametrize("name", ["deit_tiny_elliptical", "fan_tiny"])
@pytest.mark.parametrize("place", ["blocks.1", "blocks.1.attn", "norm"])
def test_calls_of_another_thread_are_not_recorded(name: str, place: str) -> None:
    torch.manual_seed(0)
    model = models.build(name, **SMALL).eval()
    images, others = torch.rand(2, 1, 16, 16), torch.rand(3, 1, 16, 16)
    expected = observe(model, images)

    def run_elsewhere(*_: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            thread = threading.Thread(target=model, args=(others,))
            thread.start()
            thread.join()

    model.get_submodule(place).register_forward_pre_hook(run_elsewhere)
    found = observe(model, images)
    assert len(found.layers) == len(expected.layers) == 3
    assert len(found.class_maps) == len(expected.class_maps)
    for layer, wanted in zip(found.layers, expected.layers, strict=True):
        assert torch.equal(layer.inputs, wanted.inputs)
        assert torch.equal(layer.outputs, wanted.outputs)
        assert all(
            torch.equal(a, b) for a, b in zip(layer.mixer.result, wanted.mixer.result, strict=True)
        )
    for class_map, wanted in zip(found.class_maps, expected.class_maps, strict=True):
        assert torch.equal(class_map, wanted)


def test_a_batch_of_no_samples_is_refused() -> None:
    model = models.build("deit_tiny", **SMALL)
    with pytest.raises(ValueError, match=r"inputs must hold at least one sample, got \(0, 1, 16"):
        diagnose(model, torch.rand(0, 1, 16, 16))
