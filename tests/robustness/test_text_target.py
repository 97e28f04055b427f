import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from data.datasets.listops import TOKENS, value_of
from data.token_set import Ragged
from data.tokenizer import listops_tokenizer
from export.run import Run
from export.samples import Samples
from export.write import write_artifact
from models.checkpoints import save_weights
from robustness.progress import Cancelled, Meter
from robustness.text_target import TextTarget, open_text_target, reads_listops
from runtimes.manifest import TextSpec
from service.predictions.served import pad

REVIEWS = ["A moving film, brilliantly acted.", "Dull.", "I left<br />after ten minutes. " * 90]


def test_texts_take_the_way_of_the_service(imdb: TextTarget) -> None:
    rows = imdb.tokenizer.rows(REVIEWS, imdb.max_len)
    assert len(rows[2]) == imdb.max_len == 512
    assert np.array_equal(imdb.predict(REVIEWS), imdb.runtime.predict(pad([rows[:2], rows[2:]])))


def test_what_pads_does_not_matter(elliptical: TextTarget) -> None:
    texts = ["short", "some longer text"]
    served = elliptical.runtime.predict(pad([elliptical.tokenizer.rows(texts, 64)]))
    assert np.array_equal(elliptical.predict(texts), served)


def test_every_batch_is_counted_and_can_be_the_last(bag: TextTarget, texts: list[str]) -> None:
    meter = Meter(100)
    assert bag.predict(texts * 6, meter).shape == (72, 2) and meter.done == 72
    stopping = Meter(100, should_stop=lambda: stopping.done > 0)
    with pytest.raises(Cancelled):
        bag.predict(texts * 6, stopping)
    assert stopping.done == 32


@pytest.mark.parametrize(
    ("text", "message"),
    [("a \ud800", "texts must be Unicode, but text 1 has half a"), (" ", "every text must hold a")],
)
def test_a_text_that_cannot_be_read_is_refused(bag: TextTarget, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bag.predict(["fine", text])


def test_gradient_is_the_slope_of_the_margin(elliptical: TextTarget) -> None:
    torch_model = elliptical.require_torch_model().double()
    tokens = np.frombuffer(b"abcdefgh", np.uint8).astype(np.int64)
    gradient = elliptical.margin_gradient(tokens, 1, variant="full")
    weight = elliptical.embedding().weight
    for place, column in ((0, 0), (3, 7), (7, 15)):
        margins = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                weight[tokens[place], column] += step
                logits = torch_model(torch.from_numpy(tokens)[None])[0]
                weight[tokens[place], column] -= step
            margins.append(float(logits[1] - max(logits[0], logits[2])))
        assert gradient[place, column] == pytest.approx((margins[0] - margins[1]) / 2e-5, rel=1e-4)


def test_gradients_stop_at_m_or_flow_through_it(elliptical: TextTarget, bag: TextTarget) -> None:
    assert elliptical.variants == ("stopped", "full") and bag.variants == ("plain",)
    tokens = np.arange(97, 117)
    stopped, full = (elliptical.margin_gradient(tokens, 0, variant=v) for v in elliptical.variants)
    assert np.abs(stopped - full).max() > 1e-3 * np.abs(full).max()


@pytest.mark.parametrize("label", [0, 5])
def test_a_gradient_changes_nothing_also_after_an_error(bag: TextTarget, label: int) -> None:
    torch_model = bag.require_torch_model().train()
    before = [(p.requires_grad, p.grad) for p in torch_model.parameters()]
    state = torch.get_rng_state()
    for _ in range(2):
        try:
            bag.margin_gradient(np.array([3, 4]), label, variant="plain")
            assert label == 0
        except IndexError:
            assert label == 5
    assert all(part.training and not part._forward_hooks for part in torch_model.modules())
    assert [(p.requires_grad, p.grad) for p in torch_model.parameters()] == before
    assert torch.equal(torch.get_rng_state(), state)


def test_without_embeddings_hotflip_is_impossible(bag: TextTarget) -> None:
    with pytest.raises(ValueError, match="need the PyTorch model, but 'small'"):
        replace(bag, torch_model=None).embedding()
    twice = nn.ModuleList([nn.Embedding(3, 2), nn.Embedding(3, 2)])
    with pytest.raises(ValueError, match="one table of embeddings, but 'small' has 2"):
        replace(bag, torch_model=twice).embedding()


def test_labels_are_recomputed_where_a_model_reads_expressions(imdb: TextTarget) -> None:
    assert imdb.relabel is None
    assert reads_listops(listops_tokenizer(), TOKENS[:10])
    assert not reads_listops(listops_tokenizer(), TOKENS[:9])
    assert not reads_listops(imdb.tokenizer, TOKENS[:10])


@pytest.mark.slow
def test_labels_of_an_exported_model_of_expressions_are_recomputed(
    make_expression: Callable[[np.random.Generator], str],
    make_listops_model: Callable[[], nn.Module],
    tmp_path: Path,
) -> None:
    tokenizer, model = listops_tokenizer(), make_listops_model()
    draw = np.random.default_rng(0)
    expressions = [make_expression(draw) for _ in range(1000)]
    rows = tokenizer.rows(expressions, 64)
    save_weights(model, tmp_path / "best.safetensors")
    tokenizer.save(tmp_path / "tokenizer.json")
    run = Run(
        folder=tmp_path,
        recipe={"name": "digits", "version": "1", "seed": 0, "data": {"source": "made"}},
        metrics={},
        architecture="lra_transformer",
        config=json.loads(json.dumps(asdict(model.config))),  # pyright: ignore[reportArgumentType] a dataclass
        labels=TOKENS[:10],
        spec=TextSpec(max_len=64),
    )
    samples = Samples(
        tokens=Ragged.of(rows, np.uint32), pad=tokenizer.pad, labels=None, description="made"
    )
    target = open_text_target(
        write_artifact(run, samples, tmp_path / "artifact", program=False), threads=1
    )
    assert target.relabel is value_of
    torch_model = target.require_torch_model()
    tokens, mask = map(torch.from_numpy, target.encode(expressions[:5]))
    np.testing.assert_allclose(
        target.predict(expressions[:5]), torch_model(tokens, mask), atol=1e-4
    )
