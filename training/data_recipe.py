"""The section `data` of a recipe: images, texts, or a task of the Long Range Arena."""

from dataclasses import dataclass

from core.fields import check_at_least, check_fraction, check_types
from data.images import ImageSpec


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
