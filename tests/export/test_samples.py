from pathlib import Path

import numpy as np
import pytest

from data.token_set import Ragged
from export.run import open_run
from export.samples import Samples, open_samples, spread


def test_indices_are_spread_evenly() -> None:
    assert spread(10, 3).tolist() == [0, 3, 6]
    assert spread(4, 9).tolist() == [0, 1, 2, 3]
    assert spread(0, 5).tolist() == []


def test_held_out_images_are_read_as_the_model_reads_them(run_folder: Path) -> None:
    samples = open_samples(open_run(run_folder), limit=100)
    assert len(samples) == 100 and samples.labels is not None
    images = samples.take(np.array([5, 2])).feed()["images"]
    assert images.dtype == np.float32 and images.shape == (2, 1, 28, 28)
    assert samples.pixels is not None
    np.testing.assert_array_equal(images[1] * 255, samples.pixels[2])
    assert samples.description.endswith("held-out validation split")


def test_texts_are_padded_to_the_longest_of_the_batch(text_run_folder: Path) -> None:
    samples = open_samples(open_run(text_run_folder), limit=50)
    lengths = samples.feed()["mask"].sum(1)
    shortest = int(lengths.argmin())
    feed = samples.feed([shortest])
    assert feed["tokens"].shape == (1, lengths.min()) and feed["mask"].all()
    assert lengths.max() == 12  # cut


def test_samples_need_inputs() -> None:
    with pytest.raises(ValueError, match="samples must have pixels or tokens"):
        len(Samples(labels=None, description=""))
    tokens = Ragged.of([np.array([3, 4]), np.array([5])], np.uint16)
    feed = Samples(tokens=tokens, pad=1, labels=None, description="").feed()
    assert feed["tokens"].tolist() == [[3, 4], [5, 1]]


def test_texts_in_disorder_keep_their_tokens_but_not_their_order() -> None:
    rows = [np.arange(50), np.arange(30, 90), np.array([7])]
    samples = Samples(tokens=Ragged.of(rows, np.uint32), labels=None, description="three")
    mixed = samples.in_disorder(seed=0)
    assert mixed.tokens is not None and len(mixed) == 3
    for i, row in enumerate(rows):
        assert np.array_equal(np.sort(mixed.tokens[i]), row)
    assert (mixed.tokens.values == np.concatenate(rows)).mean() < 0.2
