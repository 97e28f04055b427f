import numpy as np

from results.isomap import embed


def test_a_bent_line_is_unrolled() -> None:
    angles = np.linspace(0, 1.5 * np.pi, 60)
    tokens = np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1)
    places = embed(tokens)
    assert places is not None
    x = np.array(places["x"])
    steps = np.diff(x) * np.sign(x[-1] - x[0])
    assert (steps > 0).all()
    assert abs(abs(x[-1] - x[0]) / (1.5 * np.pi) - 1) < 0.02


def test_parts_are_tied_and_equal_tokens_have_no_places() -> None:
    near = np.random.default_rng(0).normal(size=(20, 4))
    places = embed(np.concatenate([near, near + 100]))
    assert places is not None
    x = np.array(places["x"])
    assert abs(x[:20].mean() - x[20:].mean()) > 10 * x[:20].std()
    assert embed(np.ones((30, 4))) is None
