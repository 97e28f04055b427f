import dataclasses
import math
from typing import Any

import pytest

from training.recipe import AdversarialRecipe, DistillationRecipe, TextData, TokenData, TrainRecipe

SECTIONS: list[tuple[type[Any], dict[str, Any]]] = [
    (TrainRecipe, {"epochs": 4}),
    (AdversarialRecipe, {"eps": 0.1, "alpha": 0.1, "steps": 1}),
    (DistillationRecipe, {"teacher_epochs": 1}),
    (TextData, {"source": "imdb", "valid": 16, "max_len": 12, "vocab_size": 60}),
    (TokenData, {"source": "lra-text"}),
]


@pytest.mark.parametrize(("kind", "values"), SECTIONS)
@pytest.mark.parametrize("value", [{}, [[1]], 1j])
def test_every_field_refuses_another_type(
    kind: type[Any], values: dict[str, Any], value: object
) -> None:
    kind(**values)
    for field in dataclasses.fields(kind):
        wrong = {"*": {}} if field.name == "lr_factors" and value == {} else value
        with pytest.raises(ValueError, match=rf"^{field.name}.* must be "):
            kind(**values | {field.name: wrong})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_size": 4.0}, "batch_size must be an integer, got 4.0"),
        ({"batch_size": True}, "batch_size must be an integer, got True"),
        ({"batch_size": None}, "batch_size must be an integer, got None"),
        ({"patience": 0.5}, "patience must be an integer, got 0.5"),
        ({"lr": "1e-3"}, "lr must be a finite number, got '1e-3'"),
        ({"lr": True}, "lr must be a finite number, got True"),
        ({"lr": math.inf}, "lr must be a finite number, got inf"),
        ({"lr": math.nan}, "lr must be a finite number, got nan"),
        ({"lr": 10**400}, "lr must be a finite number, got 1000"),
        ({"monitor": "time"}, "monitor must be one of accuracy, loss, got 'time'"),
        ({"restarts": 3}, "restarts must be a list, got 3"),
        ({"restarts": [1, 2.0]}, r"restarts\[1\] must be an integer, got 2.0"),
        ({"betas": "99"}, "betas must be a list, got '99'"),
    ],
)
def test_values_of_another_type_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainRecipe(epochs=4, **values)


def test_lists_become_tuples_and_integers_floats() -> None:
    values: dict[str, Any] = {"warmup_epochs": 1, "betas": [0, 0.9], "restarts": [2]}
    train = TrainRecipe(epochs=4, **values)
    assert train.betas == (0, 0.9) and train.restarts == (2,)
    assert [type(value) for value in (train.warmup_epochs, *train.betas)] == [float] * 3
