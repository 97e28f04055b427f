"""Recipes: what to train, checked field by field; `training.recipe_file` reads them from YAML."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from core.fields import check_at_least, check_fraction, check_positive, check_types
from data.images import ImageSpec
from robustness.parsing import parse_eps


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageData:
    """Images to read.

    Attributes:
        source: see `data.sources.open_images`.
        valid: images held out of the training split for validation.
        image: size and channels of the input.
        flip: mirror half of the training images.
        shift: move training images by up to this many pixels each way.
        random_crop: train on random parts of 8 to 100 % of an image; for images that are decoded
            for every batch.
        rand_augment: operations of RandAugment per image.
        magnitude: their strength, from 0 to 10.
        color_jitter: change brightness, contrast and saturation by factors of up to 1 +- this.
        erase: probability of filling a rectangle with noise.
        mixup: parameter of the Beta distribution of mixup; 0 does none.
        cutmix: parameter of the Beta distribution of CutMix; 0 does none.
        repeats: times that an image comes, differently augmented, in a batch; an epoch then sees
            fewer images.
        in_memory: decode all images once; False decodes them for every batch.
        workers: processes that prepare batches ahead of the model; 0 prepares them in its own.
    """

    source: str
    valid: int
    image: ImageSpec
    flip: bool = False
    shift: int = 0
    random_crop: bool = False
    rand_augment: int = 0
    magnitude: float = 9.0
    color_jitter: float = 0.0
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    repeats: int = 1
    in_memory: bool = True
    workers: int = 0

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        check_types(self)
        check_at_least(self, 0, "shift", "rand_augment", "mixup", "cutmix", "workers")
        check_at_least(self, 1, "repeats")
        check_fraction(self, "color_jitter", "erase")
        if not 0 <= self.magnitude <= 10:
            raise ValueError(f"magnitude must lie in [0, 10], got {self.magnitude}")
        if self.random_crop and self.in_memory:
            raise ValueError(
                "random_crop needs in_memory false: stored images have lost their size"
            )

    @property
    def mixes(self) -> bool:
        """Whether images are mixed with each other."""
        return self.mixup > 0 or self.cutmix > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TextData:
    """Texts to read.

    Attributes:
        source: see `data.sources.open_texts`.
        valid: texts held out of the training split for validation.
        max_len: tokens after the first `max_len` of a text are cut off.
        tokenizer: "wordpiece" trains one on the training texts, without those held out; anything
            else is what `data.tokenizer.load_tokenizer` knows.
        vocab_size: entries of the tokenizer that is trained.
        bucket: put texts of similar length into one batch.
        workers: processes that prepare batches ahead of the model; 0 prepares them in its own.
    """

    source: str
    valid: int
    max_len: int
    tokenizer: str = "wordpiece"
    vocab_size: int | None = None
    bucket: bool = True
    workers: int = 0

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        check_types(self)
        check_at_least(self, 1, "max_len")
        check_at_least(self, 0, "workers")
        if (self.tokenizer == "wordpiece") != (self.vocab_size is not None):
            raise ValueError(
                "vocab_size must be given where a wordpiece tokenizer is trained, and only there, "
                f"got {self.vocab_size} with tokenizer {self.tokenizer!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenData:
    """A task of the Long Range Arena.

    Attributes:
        source: see `data.datasets.lra.open_tokens`.
        valid: samples held out of the training split; None where the task has a split of its own.
        max_len: cut sequences after so many tokens; None keeps them whole.
        size: draw only so many training samples of a task that is drawn.
        cache: folder that keeps what was drawn.
        bucket: put sequences of similar length into one batch.
        workers: processes that draw the task, and that prepare batches ahead of the model.
    """

    source: str
    valid: int | None = None
    max_len: int | None = None
    size: int | None = None
    cache: str = "cache"
    bucket: bool = True
    workers: int = 0

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        check_types(self)
        check_at_least(self, 1, "max_len", "size")
        check_at_least(self, 0, "workers")


DataRecipe = ImageData | TextData | TokenData


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRecipe:
    """How to train.

    Attributes:
        epochs: passes over the training split; give this or `steps`.
        steps: optimizer steps; give this or `epochs`.
        batch_size: samples per step, over all processes.
        accumulate: parts into which each process cuts its share of a batch.
        optimizer: "adamw" decays weights apart from the gradient, "adam" as part of it.
        lr: peak learning rate.
        betas: decay of the two moments of Adam.
        adam_eps: Adam's constant in the denominator.
        weight_decay: on matrices only.
        schedule: form of the decay from the peak to `min_lr`; "constant" stays at the peak.
        warmup_epochs: epochs of linear warm-up.
        warmup_steps: steps of warm-up instead, where given.
        warmup_lr: learning rate at which the warm-up starts.
        min_lr: learning rate at which the decay ends.
        cooldown_epochs: last epochs, spent at `min_lr`.
        restarts: epochs at which the decay starts again without warm-up (SGDR: Loshchilov and
            Hutter 2017), in ascending order.
        restart_decay: factor of the peak learning rate at each restart.
        clip_norm: largest norm of the gradient; None does not clip.
        label_smoothing: share of a target that is spread over all classes.
        reconstruction: weight of TransJect's reconstruction loss.
        ema: decay of an average of the weights, which is then what is validated and kept.
        precision: "bf16" runs the model under autocast; weights and validation stay in fp32.
        monitor: what of the validation decides which weights are the best.
        patience: stop after this many validations without a better one; None never stops.
        validate_steps: steps between two validations; None validates after each epoch.
        checkpoint_seconds: time between two checkpoints, beside the one after each validation.
    """

    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 128
    accumulate: int = 1
    optimizer: Literal["adamw", "adam"] = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    adam_eps: float = 1e-8
    weight_decay: float = 0.05
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_epochs: float = 1.0
    warmup_steps: int | None = None
    warmup_lr: float = 0.0
    min_lr: float = 0.0
    cooldown_epochs: float = 0.0
    restarts: tuple[int, ...] = ()
    restart_decay: float = 0.5
    clip_norm: float | None = 1.0
    label_smoothing: float = 0.0
    reconstruction: float = 1.0
    ema: float | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    monitor: Literal["accuracy", "loss"] = "accuracy"
    patience: int | None = None
    validate_steps: int | None = None
    checkpoint_seconds: float = 60.0

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        check_types(self)
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"either epochs or steps must be given, got {self.epochs} and {self.steps}"
            )
        check_at_least(self, 1, "epochs", "steps", "batch_size", "accumulate", "patience")
        check_at_least(self, 1, "validate_steps")
        check_at_least(
            self, 0, "warmup_epochs", "warmup_steps", "warmup_lr", "min_lr", "weight_decay"
        )
        check_at_least(self, 0, "cooldown_epochs", "reconstruction", "checkpoint_seconds")
        check_positive(self, "lr", "adam_eps", "clip_norm", "restart_decay")
        self._check_ranges()

    def _check_ranges(self) -> None:
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas}")
        check_fraction(self, "label_smoothing")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"ema must lie in (0, 1), got {self.ema}")
        if not self.restarts:
            return
        bounds = (0, *self.restarts, self.epochs or 0)
        if sorted(set(bounds)) != list(bounds):
            raise ValueError(f"restarts must ascend between 0 and epochs, got {self.restarts}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdversarialRecipe:
    """Train on the worst images of an l-infinity ball; radius and step size in [0, 1] pixels.

    Attributes:
        eps: radius of the ball.
        alpha: size of a step.
        steps: number of steps.
        method: "pgd" learns the labels of the attacked images alone, "trades" those of the clean
            ones, and to answer alike on both.
        beta: weight of that second part of TRADES.
    """

    eps: float
    alpha: float
    steps: int
    method: Literal["pgd", "trades"] = "pgd"
    beta: float = 6.0

    def __post_init__(self) -> None:
        """Read `8/255` as a number and check the rules."""
        for name in ("eps", "alpha"):
            radius = parse_eps(str(getattr(self, name)), name=name)
            object.__setattr__(self, name, radius)
        check_types(self)
        check_at_least(self, 1, "steps")
        check_positive(self, "beta")


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationRecipe:
    """Learn from a convolutional teacher, trained first, beside the labels.

    Attributes:
        teacher_epochs: how long the teacher is trained.
        start: epoch from which the student learns from it.
        weight: share of the teacher in the loss, in (0, 1].
        temperature: softens both predictions.
    """

    teacher_epochs: int
    start: int = 0
    weight: float = 0.5
    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        check_types(self)
        check_at_least(self, 1, "teacher_epochs")
        if not 0 < self.weight <= 1:
            raise ValueError(f"weight must lie in (0, 1], got {self.weight}")
        check_positive(self, "temperature")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A classifier to train.

    Attributes:
        name: name of the run and of its artifact.
        version: version of the artifact.
        seed: seed of weights, order, augmentation and the validation split.
        variant: which of a recipe file's variants this is.
        size: which of a recipe file's sizes this is; None is the full one.
        labels: names of the classes in order of index.
        model: `name` and config fields; resolved to the full config when read.
        data: what to read.
        train: how to train.
        distillation: a teacher to learn from; None learns from labels alone.
        adversarial: how to attack each training batch; None trains on clean images.
        init: weights to start from (safetensors); None starts from random ones.
        logs: trackers of the run, beside its csv files.
    """

    name: str
    version: str = "1"
    seed: int = 0
    variant: str | None = None
    size: str | None = None
    labels: list[str]
    model: dict[str, Any]
    data: DataRecipe
    train: TrainRecipe
    distillation: DistillationRecipe | None = None
    adversarial: AdversarialRecipe | None = None
    init: str | None = None
    logs: tuple[Literal["tensorboard", "mlflow", "wandb"], ...] = ("tensorboard",)

    def __post_init__(self) -> None:
        """Check every rule, and what concerns several sections."""
        check_types(self)
        check_at_least(self, 0, "seed")
        if len(self.labels) != self.model["num_classes"]:
            raise ValueError(
                f"labels must name every class of the model: {len(self.labels)} labels, "
                f"num_classes={self.model['num_classes']}"
            )
        if isinstance(self.data, ImageData):
            if self.distillation is not None:
                self._check_distillation(self.data)
            return
        for section in ("distillation", "adversarial"):
            if getattr(self, section) is not None:
                raise ValueError(f"{section} is for images only, got data of {self.data.source}")

    def _check_distillation(self, data: ImageData) -> None:
        if not data.in_memory:
            raise ValueError("distillation needs data.in_memory: the teacher sees every image")
        # The teacher is asked once about each image, as it is stored.
        if data.mixes:
            raise ValueError(
                "distillation needs data.mixup and data.cutmix 0: the teacher sees no mixed "
                f"images, got {data.mixup} and {data.cutmix}"
            )
        if self.adversarial is not None:
            raise ValueError("distillation needs adversarial null: the teacher sees no attack")

    @property
    def run_name(self) -> str:
        """Name of the run's folder: the recipe's, with its size if chosen and its seed if not 0."""
        seed = f"seed{self.seed}" if self.seed else ""
        return "-".join(part for part in (self.name, self.size or "", seed) if part)

    def to_dict(self) -> dict[str, Any]:
        """The resolved recipe as YAML values."""
        return _plain(dataclasses.asdict(self))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A resolved recipe by the names of overrides, such as `train.epochs`."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        inner = flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {}
        found |= inner or {f"{prefix}{key}": value}
    return found
