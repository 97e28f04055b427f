"""Recipes: what to train, checked field by field; `training.recipe_file` reads them from YAML."""

import dataclasses
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from core.fields import (
    check_at_least,
    check_fraction,
    check_positive,
    check_types,
    explained,
)
from data.images import ImageSpec
from robustness.parsing import parse_eps


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageData:
    """Images to read, and how the training images are changed."""

    task: ClassVar[str] = "classification"  # see `training.tasks`
    labeled: ClassVar[bool] = True  # whether there are classes

    source: str  # folder, file, hf:NAME or known name, see docs/reference/data.md
    valid: int  # images held out of the training split for validation
    image: ImageSpec  # what the model takes
    flip: bool = False  # mirror half of the images
    shift: int = 0  # move images by up to this many pixels each way
    random_crop: bool = False  # train on random parts of 8 to 100 % of an image
    rand_augment: int = 0  # operations of RandAugment per image
    magnitude: float = 9.0  # their strength, from 0 to 10
    color_jitter: float = 0.0  # brightness, contrast, saturation by factors of up to 1 +- this
    erase: float = 0.0  # probability of filling a rectangle with noise
    patches: int = (
        0  # side of patches cropped, made noisy and mirrored each on its own; 0 does none
    )
    mixup: float = 0.0  # parameter of the Beta distribution of mixup; 0 does none
    cutmix: float = 0.0  # the same of CutMix
    repeats: int = 1  # times that an image comes in a batch; an epoch then sees fewer images
    in_memory: bool = True  # decode all images once; else they are decoded for every batch
    workers: int = 0  # processes that prepare batches ahead of the model; 0 does it in its own

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        check_types(self)
        check_at_least(self, 0, "shift", "rand_augment", "patches", "mixup", "cutmix", "workers")
        check_at_least(self, 1, "repeats")
        check_fraction(self, "color_jitter", "erase")
        if not 0 <= self.magnitude <= 10:
            raise ValueError(f"magnitude must lie in [0, 10], got {self.magnitude}")
        height, width = self.image.height, self.image.width
        if self.patches and (height % self.patches or width % self.patches):
            sizes = f"{self.patches} and {height} x {width}"
            raise ValueError(f"patches must divide height and width, got {sizes}")
        if self.random_crop and self.in_memory:
            raise ValueError(
                "random_crop needs in_memory false: stored images have lost their size"
            )

    @property
    def mixes(self) -> bool:
        """Whether images are mixed with each other."""
        return self.mixup > 0 or self.cutmix > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskData:
    """Images with the class of every pixel, and how the training images are changed."""

    task: ClassVar[str] = "segmentation"
    labeled: ClassVar[bool] = True

    source: str  # folder or known name, see docs/reference/data.md
    image: ImageSpec  # what the model takes
    background: int | None  # class that `item_mean_iou` leaves out; None where all are alike
    valid: int | None = None  # images held out; None where the set has a split of its own
    flip: bool = False  # mirror half of the images with their masks
    # Train on windows of images whose shorter side is 0.5 to 2 times that of the model's input.
    random_crop: bool = False
    color_jitter: float = 0.0  # brightness, contrast, saturation by factors of up to 1 +- this
    in_memory: bool = True  # decode all images once; else they are decoded for every batch
    workers: int = 0  # processes that prepare batches ahead of the model; 0 does it in its own

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        check_types(self)
        check_at_least(self, 0, "background", "workers")
        check_at_least(self, 1, "valid")
        check_fraction(self, "color_jitter")
        if self.random_crop and self.in_memory:
            raise ValueError(
                "random_crop needs in_memory false: stored images have lost their size"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TextData:
    """Texts to read."""

    task: ClassVar[str] = "classification"
    labeled: ClassVar[bool] = True

    source: str  # folder, file, hf:NAME or known name, see docs/reference/data.md
    valid: int  # texts held out of the training split for validation
    max_len: int  # tokens after the first `max_len` of a text are cut off
    # "wordpiece" trains a tokenizer on the training texts, without those held out; "bytes", a file
    # or hf:NAME takes another one.
    tokenizer: str = "wordpiece"
    vocab_size: int | None = None  # entries of the tokenizer that is trained
    bucket: bool = True  # put texts of similar length into one batch
    workers: int = 0  # processes that prepare batches ahead of the model; 0 does it in its own

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
    """A task of the Long Range Arena."""

    task: ClassVar[str] = "classification"
    labeled: ClassVar[bool] = True

    source: str  # name of the task, see docs/reference/data.md
    valid: int | None = None  # samples held out; None where the task has a split of its own
    max_len: int | None = None  # cut sequences after so many tokens; None keeps them whole
    size: int | None = None  # draw only so many training samples of a task that is drawn
    cache: str = "cache"  # folder that keeps what was drawn
    bucket: bool = True  # put sequences of similar length into one batch
    workers: int = 0  # processes that draw the task, and that prepare batches

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        check_types(self)
        check_at_least(self, 1, "max_len", "size")
        check_at_least(self, 0, "workers")


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageData:
    """Texts whose next tokens a model predicts, cut into segments of `context` tokens."""

    task: ClassVar[str] = "language"
    labeled: ClassVar[bool] = False
    bucket: ClassVar[bool] = False

    source: str  # folder, zip, file, hf:NAME or known name, see docs/reference/data.md
    context: int  # tokens of a segment: no prediction sees more
    # Of each segment, validation and test score so many of the last tokens, so that each has at
    # least context - stride tokens before it; null scores all, the first with none.
    stride: int | None = None
    # Documents held out of all for the test, and out of the rest for validation; null where the
    # source has such a split of its own.
    test: int | None = None
    valid: int | None = None
    # "words" makes a vocabulary of the training split; "bytes", a file or hf:NAME takes another one
    tokenizer: str = "words"
    vocab_size: int | None = None  # words kept, the commonest; null keeps all
    raw: bool = False  # text as written: lower its case, and take marks as words
    workers: int = 0  # processes that prepare batches ahead of the model; 0 does it in its own

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        check_types(self)
        check_at_least(self, 1, "context", "stride", "test", "valid")
        check_at_least(self, 0, "workers")
        check_at_least(self, 3, "vocab_size")
        if self.stride is not None and self.stride > self.context:
            raise ValueError(f"stride must be at most context {self.context}, got {self.stride}")
        if self.tokenizer != "words" and (self.raw or self.vocab_size is not None):
            raise ValueError(
                "raw and vocab_size are for a vocabulary of words, got tokenizer "
                f"{self.tokenizer!r}"
            )

    @property
    def is_bytes(self) -> bool:
        """Whether the tokens are bytes."""
        return self.tokenizer == "bytes"


DataRecipe = ImageData | MaskData | TextData | TokenData | LanguageData


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRecipe:
    """How to train; either `epochs` or `steps` is given."""

    epochs: int | None = None  # passes over the training split
    steps: int | None = None  # optimizer steps
    batch_size: int = 128  # samples per step, over all processes
    accumulate: int = 1  # parts into which each process cuts its share of a batch
    # Decay apart from the gradient, or within it; stochastic gradient descent with momentum.
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    lr: float = 1e-3  # peak learning rate
    # Factors of it for the parameters whose name a pattern such as "*.bias" fits; the first counts.
    lr_factors: dict[str, float] = field(default_factory=dict)
    betas: tuple[float, float] = (0.9, 0.999)  # decay of the two moments of Adam
    adam_eps: float = 1e-8  # Adam's constant in the denominator
    momentum: float = 0.9  # of SGD
    weight_decay: float = 0.05  # on matrices only
    # From the peak to `min_lr`; polynomial: (1 - share of the steps done) ** `power`.
    schedule: Literal["cosine", "linear", "polynomial", "constant"] = "cosine"
    power: float = 0.9  # of the polynomial
    warmup_epochs: float = 1.0  # linear warm-up
    warmup_steps: int | None = None  # its steps instead, where given
    warmup_lr: float = 0.0  # learning rate at which the warm-up starts
    min_lr: float = 0.0  # learning rate at which the decay ends
    cooldown_epochs: float = 0.0  # last epochs, spent at `min_lr`
    # Epochs, ascending, at which the decay starts again without warm-up (SGDR: Loshchilov and
    # Hutter 2017).
    restarts: tuple[int, ...] = ()
    restart_decay: float = 0.5  # factor of the peak learning rate at each restart
    # First steps, which see the first `short_len` tokens of a sequence alone (Li et al. 2022).
    short_steps: int = 0
    short_len: int | None = None  # given where `short_steps` is
    clip_norm: float | None = 1.0  # largest norm of the gradient; None does not clip
    label_smoothing: float = 0.0  # share of a target that is spread over all classes
    reconstruction: float = 1.0  # weight of TransJect's reconstruction loss
    load_balance: float = 0.01  # weight of what mixtures of experts add for unequal loads
    # Tokens of each sample that half of the loss assumes to be replaced by the worst of the batch;
    # of TransJect with random eigenvalues, one expert and mean pooling.
    replaced: int = 0
    ema: float | None = None  # decay of an average of the weights: it is validated and kept then
    precision: Literal["fp32", "bf16"] = "fp32"  # of the model in training; weights stay in fp32
    monitor: Literal["accuracy", "loss"] = "accuracy"  # of the validation: picks the best weights
    patience: int | None = None  # stop after this many validations without a better one
    validate_steps: int | None = None  # between two validations; None validates after each epoch
    checkpoint_seconds: float = 60.0  # between two checkpoints, beside those of the validations

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        check_types(self)
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"either epochs or steps must be given, got {self.epochs} and {self.steps}"
            )
        counts = ("epochs", "steps", "batch_size", "accumulate", "patience", "validate_steps")
        check_at_least(self, 1, *counts, "short_len")
        losses = ("reconstruction", "load_balance", "replaced")
        rates = ("warmup_lr", "min_lr", "weight_decay", *losses)
        lengths = ("warmup_epochs", "warmup_steps", "cooldown_epochs", "checkpoint_seconds")
        check_at_least(self, 0, *rates, *lengths, "short_steps")
        check_positive(self, "lr", "adam_eps", "clip_norm", "restart_decay", "power")
        self._check_factors()
        if (self.short_steps > 0) != (self.short_len is not None):
            raise ValueError(
                "short_steps and short_len must be given together, "
                f"got {self.short_steps} and {self.short_len}"
            )
        check_fraction(self, "label_smoothing", "momentum")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas}")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"ema must lie in (0, 1), got {self.ema}")
        bounds = (0, *self.restarts, self.epochs or 0)
        if self.restarts and sorted(set(bounds)) != list(bounds):
            raise ValueError(f"restarts must ascend between 0 and epochs, got {self.restarts}")

    def _check_factors(self) -> None:
        for pattern, factor in self.lr_factors.items():
            number = isinstance(factor, int | float) and not isinstance(factor, bool)
            if not number or not 0 < factor < math.inf:
                raise ValueError(
                    f"lr_factors must be positive numbers, got {factor!r} of {pattern}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdversarialRecipe:
    """Train on the worst images of an l-infinity ball; radius and step size in [0, 1] pixels."""

    eps: float  # radius of the ball
    alpha: float  # size of a step
    steps: int  # of the attack on each batch
    # "pgd" learns the labels of the attacked images alone, "trades" those of the clean ones, and to
    # answer alike on both.
    method: Literal["pgd", "trades"] = "pgd"
    beta: float = 6.0  # weight of that second part of TRADES

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
    """Learn from a convolutional teacher, trained first, beside the labels."""

    teacher_epochs: int  # how long the teacher is trained
    start: int = 0  # epoch from which the student learns from it
    weight: float = 0.5  # share of the teacher in the loss, in (0, 1]
    temperature: float = 1.0  # softens both predictions

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        check_types(self)
        check_at_least(self, 1, "teacher_epochs")
        if not 0 < self.weight <= 1:
            raise ValueError(f"weight must lie in (0, 1], got {self.weight}")
        check_positive(self, "temperature")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A model to train."""

    name: str  # of the run and of its artifact
    version: str = "1"  # of the artifact
    seed: int = 0  # of weights, order, augmentation and the validation split
    variant: str | None = None  # which of a recipe file's variants this is
    size: str | None = None  # which of a recipe file's sizes this is; None is the full one
    labels: list[str]  # names of the classes in order of index; none where there are no classes
    model: dict[str, Any]  # its name and config fields, such as model.depth=3; see models/
    data: DataRecipe  # what to learn from
    train: TrainRecipe  # how
    distillation: DistillationRecipe | None = None  # None learns from labels alone
    adversarial: AdversarialRecipe | None = None  # None trains on clean images
    # Weights to start from (safetensors), the model's own or those that it can be made from, as a
    # classifier from a language model; None starts from random ones.
    init: str | None = None
    # Trackers of the run, beside its csv files.
    logs: tuple[Literal["tensorboard", "mlflow", "wandb"], ...] = ("tensorboard",)

    def __post_init__(self) -> None:
        """Check every rule, and what concerns several sections."""
        check_types(self)
        check_at_least(self, 0, "seed")
        self._check_labels()
        self._check_replaced()
        if isinstance(self.data, MaskData):
            self._check_masks(self.data)
        if isinstance(self.data, ImageData):
            if self.train.short_steps:
                raise ValueError(
                    f"train.short_steps is for sequences only, got data of {self.data.source}"
                )
            if self.distillation is not None:
                self._check_distillation(self.data)
            return
        for section in ("distillation", "adversarial"):
            if getattr(self, section) is not None:
                raise ValueError(
                    f"{section} is for classes of images only, got data of {self.data.source}"
                )

    def _check_labels(self) -> None:
        if self.data.labeled != ("num_classes" in self.model):
            given = "classes" if self.data.labeled else "text without classes"
            raise ValueError(
                f"model must answer what data holds, got {self.model['name']} for {given} "
                f"of {self.data.source}"
            )
        classes = self.model.get("num_classes", 0)
        if len(self.labels) != classes:
            raise ValueError(
                f"labels must name every class of the model: {len(self.labels)} labels, "
                f"num_classes={classes}"
            )

    def _check_masks(self, data: MaskData) -> None:
        if self.train.short_steps:
            raise ValueError(f"train.short_steps is for sequences only, got data of {data.source}")
        if data.background is not None and data.background >= len(self.labels):
            raise ValueError(
                f"data.background must be one of the {len(self.labels)} classes or null, "
                f"got {data.background}"
            )

    def _check_replaced(self) -> None:
        """The logits must be a mean over tokens that do not see each other, and labels classes."""
        if not self.train.replaced:
            return
        if isinstance(self.data, MaskData):
            raise ValueError("train.replaced needs one class for each sample, got masks")
        if isinstance(self.data, ImageData) and self.data.mixes:
            raise ValueError("train.replaced needs data.mixup and data.cutmix 0")
        needed = {"random_eigenvalues": True, "num_experts": 1, "pooling": "mean"}
        other = {key: self.model.get(key) for key in needed if self.model.get(key) != needed[key]}
        if other or self.model.get("towers", 1) > 1:
            raise ValueError(
                "train.replaced needs a transject with random eigenvalues, one expert, mean "
                f"pooling and one tower, got {other or 'two towers'}"
            )

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


def entries() -> Iterator[tuple[str, dict[str, str]]]:
    """For help, the sections of a recipe: a title, and what each entry means, by its name.

    Choices come first, and a default last, in brackets; an entry without one must be given.
    """
    for kind, prefix, title in (
        (Recipe, "", "the run"),
        (ImageData, "data.", "data: images"),
        (MaskData, "data.", "data: images with the class of every pixel"),
        (ImageSpec, "data.image.", "the model's input"),
        (TextData, "data.", "data: texts"),
        (TokenData, "data.", "data: a task of the Long Range Arena"),
        (LanguageData, "data.", "data: texts for a language model"),
        (TrainRecipe, "train.", "training"),
        (DistillationRecipe, "distillation.", "distillation; null without this section"),
        (AdversarialRecipe, "adversarial.", "adversarial training; null without this section"),
    ):
        told, hints = explained(kind), get_type_hints(kind)
        yield (
            title,
            {
                f"{prefix}{field.name}": _entry(field, told[field.name], hints[field.name])
                for field in dataclasses.fields(kind)
            },
        )


def _entry(field: dataclasses.Field[Any], told: str, hint: Any) -> str:
    choices = "|".join(map(str, get_args(hint))) if get_origin(hint) is Literal else ""
    meaning = ": ".join(filter(None, (choices, told))).replace("None", "null")
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    if default is dataclasses.MISSING:
        return meaning
    return f"{meaning} ({json.dumps(default)})".replace('"', "")


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A resolved recipe by the names of overrides, such as `train.epochs`."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        inner = flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {}
        found |= inner or {f"{prefix}{key}": value}
    return found
