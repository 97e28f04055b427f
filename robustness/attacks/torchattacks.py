"""Any attack of the library torchattacks, by its own name and options.

The library's object runs as it is on the differentiable model, in the chunks of the evaluation; its
outputs count only where our own checks allow them. Its attacks and their options are written down
here, so that reading a spec does not import it; a test compares them with its signatures.
"""

import hashlib
import math
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from core.names import nearest
from robustness.attacks.base import (
    Batch,
    Budget,
    Info,
    Norm,
    Search,
    Settings,
    change_size,
    in_range,
)
from robustness.attacks.gradient import GradientAttack
from robustness.kinds import NotPossible
from robustness.parsing import parse_eps

if TYPE_CHECKING:
    from robustness.target import Target

Value = int | float | str | bool | list[int]
Rule = tuple[Value | None, float, float] | tuple[str, ...] | bool
"""Default (of two numbers the smaller first), smallest and largest value; the choices, the default
first; or the default of a flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One attack of the library.

    Attributes:
        norms: the balls it works in; of attacks without a radius those that they are scored in.
        params: its options, without model, radius, norm, seed, verbosity and targeting.
        cost: forward passes of one image at most, from its options and the number of classes.
        eps: the name of its radius; None where it has none, and one run serves every budget.
        seeded: whether it takes a norm and a seed.
        channels: the only number of channels that it works with, if there is one.
        square: whether images must be square.
        min_classes: fewer classes than that it cannot attack.
    """

    norms: tuple[Norm, ...] = ("Linf",)
    params: dict[str, Rule] = field(default_factory=dict[str, Rule])
    cost: Callable[[dict[str, Any], int], int] = lambda p, _: p.get("steps", 1) + 1
    eps: str | None = "eps"
    seeded: bool = False
    channels: int | None = None
    square: bool = False
    min_classes: int = 2


_COUNT = 10_000
_STEPS: dict[str, Rule] = {"alpha": (None, 0, 1), "steps": (10, 1, _COUNT)}
_DECAY: dict[str, Rule] = {"decay": (1.0, 0, 10)}
_START: dict[str, Rule] = {"random_start": True}
_DIVERSE: dict[str, Rule] = {
    "resize_rate": (0.9, 0.1, 2), "diversity_prob": (0.5, 0, 1), "random_start": False,
}  # fmt: skip
_NOISE: dict[str, Rule] = {
    "noise_type": ("guassian", "uniform"), "noise_sd": (0.5, 0, 10),
    "noise_batch_size": (5, 1, 100), "batch_max": (2048, 1, 100_000),
}  # fmt: skip
_VARIANCE: dict[str, Rule] = {**_STEPS, **_DECAY, "N": (5, 1, 100), "beta": (1.5, 0, 100)}
_EAD: dict[str, Rule] = {
    "kappa": (0, 0, 1000), "lr": (0.01, 0, 10), "binary_search_steps": (9, 1, 20),
    "max_iterations": (100, 10, _COUNT), "abort_early": True, "initial_const": (0.001, 0, 1000),
    "beta": (0.001, 0, 10),
}  # fmt: skip
_PATCHES: dict[str, Rule] = {
    "num_iter_set": (10, 1, _COUNT), "momentum": (1.0, 0, 10), "amplification": (10.0, 0, 1000),
    "prob": (0.7, 0, 1),
}  # fmt: skip
_RESTARTS: dict[str, Rule] = {
    "steps": (10, 1, _COUNT), "n_restarts": (1, 1, 100), "eot_iter": (1, 1, 100),
    "rho": (0.75, 0, 1),
}  # fmt: skip


def _ead(p: dict[str, Any], _classes: int) -> int:
    return 1 + 2 * p["binary_search_steps"] * p["max_iterations"]


def _variance(p: dict[str, Any], _classes: int) -> int:
    return p["steps"] * (p["N"] + 1) + 1


def _times(name: str) -> Callable[[dict[str, Any], int], int]:
    return lambda p, _classes: p.get("steps", 1) * p[name] + 1


def _apgd(p: dict[str, Any], runs: int) -> int:
    return 2 + p["n_restarts"] * runs * ((p["steps"] + 2) * p["eot_iter"] + 2)


_L2: tuple[Norm, ...] = ("L2",)
_BOTH: tuple[Norm, ...] = ("Linf", "L2")

LIBRARY: dict[str, Entry] = {
    "FGSM": Entry(),
    "BIM": Entry(params=_STEPS),
    "RFGSM": Entry(params=_STEPS),
    "PGD": Entry(params=_STEPS | _START),
    "EOTPGD": Entry(params=_STEPS | {"eot_iter": (2, 1, 100)} | _START, cost=_times("eot_iter")),
    "FFGSM": Entry(params={"alpha": (None, 0, 1)}),
    "TPGD": Entry(params=_STEPS),
    "MIFGSM": Entry(params=_STEPS | _DECAY),
    "UPGD": Entry(
        params=_STEPS
        | _DECAY
        | {"random_start": False, "loss": ("ce", "margin", "dlr"), "eot_iter": (1, 1, 100)},
        cost=_times("eot_iter"),
    ),
    "APGD": Entry(
        norms=_BOTH, params=_RESTARTS | {"loss": ("ce", "dlr")}, cost=lambda p, _: _apgd(p, 1),
        seeded=True, min_classes=4,
    ),
    "APGDT": Entry(
        params=_RESTARTS | {"n_classes": (10, 2, 100)},
        cost=lambda p, _: _apgd(p, p["n_classes"]), seeded=True, min_classes=4,
    ),
    "DIFGSM": Entry(params=_STEPS | {"decay": (0.0, 0, 10)} | _DIVERSE, square=True),
    "TIFGSM": Entry(
        params=_STEPS
        | {"decay": (0.0, 0, 10), "kernel_name": ("gaussian", "linear", "uniform")}
        | {"len_kernel": (15, 1, 99), "nsig": (3, 1, 100)}
        | _DIVERSE,
        channels=3, square=True,
    ),
    "Jitter": Entry(params=_STEPS | {"scale": (10, 0, 1000), "std": (0.1, 0, 10)} | _START),
    "NIFGSM": Entry(params=_STEPS | _DECAY),
    "PGDRS": Entry(params=_STEPS | _NOISE, cost=_times("noise_batch_size")),
    "SINIFGSM": Entry(params=_STEPS | _DECAY | {"m": (5, 1, 100)}, cost=_times("m")),
    "VMIFGSM": Entry(params=_VARIANCE, cost=_variance),
    "VNIFGSM": Entry(params=_VARIANCE, cost=_variance),
    "SPSA": Entry(
        params={"delta": (0.01, 0, 1), "lr": (0.01, 0, 1), "nb_iter": (1, 1, _COUNT),
                "nb_sample": (128, 1, 2048), "max_batch_size": (64, 1, 4096)},
        cost=lambda p, _: p["nb_iter"] * (2 * p["nb_sample"] + 2) + 2,
    ),
    "EADL1": Entry(norms=("L1", "L2", "Linf"), params=_EAD, cost=_ead, eps=None),
    "EADEN": Entry(norms=("L1", "L2", "Linf"), params=_EAD, cost=_ead, eps=None),
    "PIFGSM": Entry(params=_PATCHES, cost=_times("num_iter_set"), eps="max_epsilon", channels=3),
    "PIFGSMPP": Entry(
        params=_PATCHES | {"project_factor": (0.8, 0, 100)}, cost=_times("num_iter_set"),
        eps="max_epsilon", channels=3,
    ),
    "CW": Entry(
        norms=("L2", "Linf"),
        params={"c": (1, 0, 1e6), "kappa": (0, 0, 1000), "steps": (50, 1, _COUNT),
                "lr": (0.01, 0, 10)},
        eps=None,
    ),
    "PGDL2": Entry(norms=_L2, params=_STEPS | _START | {"eps_for_division": (1e-10, 0, 1)}),
    "DeepFool": Entry(
        norms=("L2", "Linf"), params={"steps": (50, 1, _COUNT), "overshoot": (0.02, 0, 10)},
        eps=None,
    ),
    "PGDRSL2": Entry(
        norms=_L2, params=_STEPS | _NOISE | {"eps_for_division": (1e-10, 0, 1)},
        cost=_times("noise_batch_size"),
    ),
    "SparseFool": Entry(
        norms=("L0", "L1"),
        params={"steps": (10, 1, 1000), "lam": (3, 0, 100), "overshoot": (0.02, 0, 10)},
        cost=lambda p, _: 54 * p["steps"] + 1, eps=None,
    ),
    "OnePixel": Entry(
        norms=("L0",),
        params={"pixels": (1, 1, 100), "steps": (10, 1, 1000), "popsize": (10, 1, 1000),
                "inf_batch": (128, 1, 4096)},
        cost=lambda p, _: (p["steps"] + 1) * (max(p["popsize"], 5 * p["pixels"]) + 6),
        eps=None,
    ),
    "Pixle": Entry(
        norms=("L0",),
        params={"pixel_mapping": ("random", "similarity", "similarity_random", "distance",
                                  "distance_random"),
                "x_dimensions": ([2, 10], 1, 1000), "y_dimensions": ([2, 10], 1, 1000),
                "restarts": (20, 1, 1000), "max_iterations": (10, 1, 1000)},
        cost=lambda p, _: 2 * p["restarts"] * p["max_iterations"] + 2, eps=None, square=True,
    ),
    "FAB": Entry(
        norms=_BOTH,
        params={"steps": (10, 1, _COUNT), "n_restarts": (1, 1, 100), "alpha_max": (0.1, 0, 1),
                "eta": (1.05, 1, 10), "beta": (0.9, 0, 1), "n_classes": (10, 2, 100)},
        cost=lambda p, _: 4 + p["n_restarts"] * (p["n_classes"] + 1) * (2 * p["steps"] + 2),
        seeded=True,
    ),
    "Square": Entry(
        norms=_BOTH,
        params={"n_queries": (5000, 1, 1_000_000), "n_restarts": (1, 1, 100),
                "p_init": (0.8, 0, 1), "loss": ("margin", "ce"), "resc_schedule": True},
        cost=lambda p, _: 4 + p["n_restarts"] * (p["n_queries"] + 2), seeded=True,
    ),
}  # fmt: skip
REFUSED = {
    "AutoAttack": "it runs 10 steps in the place of 100: take autoattack",
    "MultiAttack": "it needs other attacks: name each of them",
    "LGV": "it trains the model",
    "GN": "it adds noise without regard to eps: take corruptions",
    "VANILA": "it changes nothing",
    "JSMA": "it aims at label + 1 modulo 10 whatever the classes are, and its memory grows with "
    "the square of the pixels",
}
"""Attacks of the library that are not run, and why."""


class TorchAttack(GradientAttack, frozen=True):
    """One attack of torchattacks."""

    info: ClassVar[Info] = Info(
        title="torchattacks",
        paper="Kim 2020 (torchattacks 3.5.1)",
        references=("arXiv:2010.01950",),
        what="any attack of the library torchattacks, by its own name",
        norms=("Linf", "L2", "L1", "L0"),
    )
    name: Literal["torchattacks"] = "torchattacks"
    norm: Norm = Field(
        default="Linf",
        description="norm of the radii; default the first one of the attack",
        json_schema_extra={"of": {"default": None}},
    )
    attack: str = Field(
        description="name in the library, such as MIFGSM",
        json_schema_extra={"of": {"enum": [*LIBRARY]}},
    )
    params: dict[str, Value] = Field(
        default_factory=dict[str, Value], description="the attack's own options in the library"
    )

    @model_validator(mode="before")
    @classmethod
    def _own_norm(cls, values: Any) -> Any:
        """Without a norm the attack's first one holds."""
        entry = LIBRARY.get(str(values.get("attack"))) if isinstance(values, dict) else None
        if entry is None or values.get("norm") is not None:
            return values
        return values | {"norm": entry.norms[0]}

    @field_validator("attack")
    @classmethod
    def _known_attack(cls, attack: str) -> str:
        if attack in REFUSED:
            raise ValueError(f"torchattacks' {attack} is refused: {REFUSED[attack]}")
        if attack not in LIBRARY:
            raise ValueError(f"unknown attack {attack[:40]!r}; {nearest(attack[:40], LIBRARY)}")
        return attack

    @model_validator(mode="after")
    def _known_params(self) -> "TorchAttack":
        if self.norm not in self._entry.norms:
            known = " or ".join(map(repr, self._entry.norms))
            raise ValueError(f"norm of {self.label!r} must be {known}, got {self.norm!r}")
        for name, value in self.params.items():
            if name not in self._entry.params:
                known = nearest(name[:40], self._entry.params)
                raise ValueError(f"params: {self.attack} takes no {name[:40]!r}; {known}")
            _check(name, value, self._entry.params[name])
        return self

    @classmethod
    def spelled(cls, words: Sequence[str]) -> dict[str, Any]:
        """See `Attack.spelled`; the first word is the library's name, the others its options."""
        if not words:
            raise ValueError("--attack must read torchattacks:NAME[:OPTION=VALUE]")
        pairs = [word.partition("=") for word in words[1:]]
        return {"attack": words[0], "params": {key: _read(text) for key, _, text in pairs}}

    @property
    def _entry(self) -> Entry:
        return LIBRARY[self.attack]

    @property
    def label(self) -> str:
        """See `Attack.label`."""
        return f"torchattacks:{self.attack}"

    @property
    def title(self) -> str:
        """See `Attack.title`."""
        return f"{self.attack} (torchattacks)"

    def searched(self, budget: Budget) -> Budget:
        """Any budget, where the attack takes no radius."""
        if self._entry.eps is not None:
            return budget
        return Budget(kind=budget.kind, value=math.inf, text="all")

    def cost(self, num_classes: int) -> int:
        """See `Attack.cost`."""
        return self._entry.cost(self._options(1.0), num_classes)

    def sizes(self) -> dict[str, tuple[str, int]]:
        """See `Attack.sizes`."""
        kinds = {"steps": "steps", "nb_iter": "steps", "max_iterations": "steps"}
        kinds |= {"num_iter_set": "steps", "n_queries": "queries", "nb_sample": "directions"}
        options = self._options(1.0)
        return {
            f"params.{name}": (kind, options[name])
            for name, kind in kinds.items()
            if name in options
        }

    def settings(self, budget: Budget) -> Settings:
        """See `Attack.settings`."""
        options = self._options(budget.value)
        return Settings(options.get("steps"), options.get("alpha"))

    def run(self, target: "Target", batch: Batch, budget: Budget, search: Search) -> Batch:
        """See `Attack.run`; outputs that the budget does not allow count as the clean inputs."""
        self._check_model(len(target.labels), batch.images)
        if not len(batch.inputs):
            nothing = {"nearest": np.zeros(0)} if self._entry.eps is None else {}
            return Batch(inputs=batch.inputs, labels=batch.labels, found=nothing)
        made = self._perturb(target, batch, budget, search)
        usable = in_range(made)
        made = np.where(usable[:, None, None, None], made, batch.images)
        size = np.where(usable, change_size(batch.images, made, self.norm), math.inf)
        if math.isinf(budget.value):
            return Batch(inputs=made, labels=batch.labels, found={"nearest": size})
        found = Batch(inputs=made, labels=batch.labels)
        inside = self.allowed(batch, found, budget, target, search.seeds)[:, None, None, None]
        return Batch(inputs=np.where(inside, made, batch.images), labels=batch.labels)

    def _perturb(
        self, target: "Target", batch: Batch, budget: Budget, search: Search
    ) -> np.ndarray:
        """What the library makes of a chunk, (B, C, H, W), whatever it is."""
        import torch
        import torchattacks

        from robustness.attacks.tensors import Counted

        seed = _chunk_seed(search.seeds)
        options = self._options(budget.value)
        if self._entry.eps is not None:
            options[self._entry.eps] = budget.value
        if self._entry.seeded:
            options |= {"norm": self.norm, "seed": seed}
        with self.prepared(target, batch, search) as (ask, images, labels):
            module = Counted(ask, target.require_torch_model())
            with _seeded(seed), torch.enable_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of the library's own code
                kernel = getattr(torchattacks, self.attack)(module, **options)
                return kernel(images.clone(), labels.clone()).detach().cpu().numpy()

    def _options(self, eps: float) -> dict[str, Any]:
        """All options, with defaults; a step that is not given can cross the ball."""
        found: dict[str, Any] = {}
        for name, rule in self._entry.params.items():
            default = rule if isinstance(rule, bool) else rule[0]
            found[name] = self.params.get(name, default)
        if "alpha" in found:
            given, steps = found["alpha"], found.get("steps", 1)
            fixed = given if given is None else parse_eps(str(given), name="alpha")
            found["alpha"] = max(eps / 4, 2.5 * eps / steps) if fixed is None else fixed
        return found

    def _check_model(self, num_classes: int, images: np.ndarray) -> None:
        entry, (_, channels, height, width) = self._entry, images.shape
        if num_classes < entry.min_classes:
            raise NotPossible(f"{self.label} needs at least {entry.min_classes} classes")
        if entry.channels not in (None, channels):
            raise NotPossible(f"{self.label} needs {entry.channels} channels, got {channels}")
        if entry.square and height != width:
            raise NotPossible(f"{self.label} needs square images, got {height} x {width}")


def _check(name: str, value: Value, rule: Rule) -> None:
    if isinstance(rule, bool):
        fine, wanted = isinstance(value, bool), "true or false"
    elif isinstance(rule[0], str):
        fine, wanted = value in rule, f"one of {', '.join(map(str, rule))}"
    elif isinstance(rule[0], list):
        pair = value if isinstance(value, list) else []
        fine, wanted = len(pair) == 2 and pair == sorted(pair), "two numbers, the smaller first"
        for one in pair:
            _check_number(name, one, rule)
    else:
        return _check_number(name, value, rule)
    if not fine:
        raise ValueError(f"params.{name} must be {wanted}, got {str(value)[:40]!r}")


def _check_number(name: str, value: Value, rule: tuple[Any, ...]) -> None:
    default, low, high = rule
    if name == "alpha" and isinstance(value, str):
        value = parse_eps(value, name="alpha")
    whole = not isinstance(default, float | None)
    if isinstance(value, bool | str | list) or (whole and not float(value).is_integer()):
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"params.{name} must be {kind}, got {str(value)[:40]!r}")
    if not low <= float(value) <= high:
        raise ValueError(f"params.{name} must lie in [{low:g}, {high:g}], got {value}")


def _read(text: str) -> Any:
    """A value of the command line; two numbers have a comma between them."""
    if "," in text:
        return [_read(one) for one in text.split(",")]
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _chunk_seed(seeds: Sequence[int]) -> int:
    """One seed of a chunk, from those of its inputs."""
    digest = hashlib.sha256(repr(list(seeds)).encode()).digest()
    return int.from_bytes(digest[:4]) >> 1


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the generators of torch, NumPy and Python, and restore them afterwards."""
    import torch

    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            torch.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
