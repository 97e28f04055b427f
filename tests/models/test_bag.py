from tests.models.small import padding, small


def test_logits_are_linear_in_the_mean_embedding_of_the_real_tokens() -> None:
    model, lengths = small("bag_of_tokens"), [9, 4, 1]
    tokens = (padding([9] * 3, 9).cumsum(1) * 3) % 11
    logits = model(tokens, padding(lengths, 9))
    w = model.state_dict()
    for row, length, found in zip(tokens, lengths, logits, strict=True):
        counts = row[:length].bincount(minlength=11).double() / length
        expected = w["head.weight"] @ (counts @ w["embedding.weight"]) + w["head.bias"]
        assert (found - expected).abs().max() <= 1e-12
    assert (model(tokens.flip(1)) - model(tokens)).abs().max() <= 1e-12
