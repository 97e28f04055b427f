import pytest

from data.splits import split_indices


def test_split_is_a_partition_and_repeats() -> None:
    train, valid = split_indices(100, 10, seed=3)
    assert sorted([*train, *valid]) == list(range(100)) and len(valid) == 10
    assert split_indices(100, 10, seed=3)[1].tolist() == valid.tolist()
    assert split_indices(100, 10, seed=4)[1].tolist() != valid.tolist()


@pytest.mark.parametrize("valid", [0, 100])
def test_split_out_of_range_is_refused(valid: int) -> None:
    with pytest.raises(ValueError, match=f"valid must be from 1 to 99, got {valid}"):
        split_indices(100, valid, seed=0)
