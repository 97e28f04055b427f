"""Read preprocessor_config.json, the input file of a Hugging Face folder."""

from collections.abc import Mapping
from typing import Any

from core.names import listed, nearest

_SQUARE = ("Beit", "DeiT", "EfficientNet", "Pvt", "Segformer", "ViT")
_SHORTEST = ("Bit", "CLIP", "ConvNext", "LeViT", "MobileNetV1", "MobileNetV2", "MobileViT")
_SHORTEST += ("PoolFormer", "Siglip")
_KINDS = {name.lower(): True for name in _SQUARE} | {name.lower(): False for name in _SHORTEST}
"""By kind of processor, whether one number as size is that of both sides, or of the shorter."""
_RESAMPLE = {2: "bilinear", 3: "bicubic"}  # as Pillow counts them
_READ = {
    *("crop_size", "default_to_square", "do_center_crop", "do_flip_channel_order"),
    *("do_normalize", "do_rescale", "do_resize", "image_mean", "image_std"),
    *("resample", "rescale_factor", "rescale_offset", "size"),
}
_OWN = {"convnext": {"crop_pct"}, "efficientnet": {"include_top"}, "poolformer": {"crop_pct"}}
_NEUTRAL = {
    *("_valid_processor_keys", "auto_map", "data_format", "device", "disable_grouping"),
    *("do_convert_rgb", "do_reduce_labels", "feature_extractor_type", "image_processor_type"),
    *("input_data_format", "model_input_names", "processor_class", "return_tensors"),
    *("_processor_class", "num_channels", "image_seq_length", "transformers_version"),
}
"""Keys that change no pixel of an RGB image, whatever they say."""
_WARPED = 384  # from this size on, ConvNext stretches images instead of cutting out their middle
_SHOWN = 4


def preprocessor_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a processor of transformers does to an image, as the keys of an input file.

    Args:
        config: the content of preprocessor_config.json.

    Raises:
        ValueError: it does what an input file cannot say; the message names the key.
    """
    kind = _kind(config)
    unknown = sorted(
        key
        for key, value in config.items()
        if key not in _READ | _NEUTRAL | _OWN.get(kind, set()) and value not in (None, False)
    )
    if unknown:
        raise ValueError(f"{listed(unknown, _SHOWN)} cannot be followed")
    if not config.get("do_resize", True):
        raise ValueError("do_resize must be true")
    resample = config.get("resample")
    if resample not in _RESAMPLE:
        known = " or ".join(f"{number} ({name})" for number, name in _RESAMPLE.items())
        raise ValueError(f"resample must be {known}, got {resample!r}")
    fields: dict[str, Any] = _sizes(kind, config) | {"resample": _RESAMPLE[resample]}
    fields["channels"] = "bgr" if config.get("do_flip_channel_order") else "rgb"
    return fields | _values(kind, config)


def _kind(config: Mapping[str, Any]) -> str:
    given = config.get("image_processor_type") or config.get("feature_extractor_type") or ""
    kind = str(given)
    for end in ("Fast", "Pil", "ImageProcessor", "FeatureExtractor"):
        kind = kind.removesuffix(end)
    if kind.lower() not in _KINDS:
        known = [f"{name}ImageProcessor" for name in (*_SQUARE, *_SHORTEST)]
        raise ValueError(
            f"image_processor_type {str(given)[:60]!r} cannot be followed; {nearest(given, known)}"
        )
    return kind.lower()


def _sizes(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys `size` and `resize`."""
    square = config.get("default_to_square", _KINDS[kind])
    size = _sides("size", config.get("size"), square)
    shortest = size.get("shortest_edge")
    if kind == "convnext" and shortest is not None:
        if shortest >= _WARPED:
            return {"size": [shortest, shortest]}
        resize = int(shortest / config.get("crop_pct", 224 / 256))
        return {"size": [shortest, shortest], "resize": resize}
    if kind == "poolformer" and config.get("crop_pct"):
        shortest = int((shortest or size["height"]) / config["crop_pct"])
    if shortest is not None and kind == "levit":
        shortest = int(256 / 224 * shortest)
    whole = [size.get("height"), size.get("width")]
    if not config.get("do_center_crop"):
        if shortest is not None:
            raise ValueError("size.shortest_edge must come with do_center_crop")
        return {"size": whole}
    crop = _sides("crop_size", config.get("crop_size"), square=True)
    cut = [crop.get("height"), crop.get("width")]
    if shortest is None and whole != cut:
        raise ValueError("size must be a shortest_edge, or equal crop_size, with do_center_crop")
    return {"size": cut} | ({} if shortest is None else {"resize": shortest})


def _sides(key: str, given: object, square: bool) -> dict[str, int]:
    """Height and width, or the shortest edge."""
    if isinstance(given, int) and not isinstance(given, bool):
        return {"height": given, "width": given} if square else {"shortest_edge": given}
    if isinstance(given, dict) and all(isinstance(value, int) for value in given.values()):
        if set(given) in ({"height", "width"}, {"shortest_edge"}):
            return given
    raise ValueError(f"{key} must have height and width, or shortest_edge, got {given!r:.60}")


def _values(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys `range`, `mean` and `std`."""
    factor = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1
    if not isinstance(factor, int | float):
        raise ValueError(f"rescale_factor must be a number, got {factor!r:.60}")
    white, black = 255 * factor, 0.0
    if config.get("rescale_offset"):
        white, black = white - 1, -1.0
    # 1/255 is written with 17 digits: white is 1, and not next to it.
    fields: dict[str, Any] = {"range": [black, round(white, 12)]}
    mean, std = config.get("image_mean"), config.get("image_std")
    # MobileViT writes mean and std beside nothing that says they are used: they are not.
    if not config.get("do_normalize", mean is not None and kind != "mobilevit"):
        return fields
    mean, std = ([each] * 3 if isinstance(each, int | float) else each for each in (mean, std))
    if not isinstance(mean, list) or not isinstance(std, list):
        raise ValueError("image_mean and image_std must be lists of numbers")
    if config.get("include_top"):  # EfficientNet divides twice
        std = [each * each for each in std]
    return fields | {"mean": mean, "std": std} | ({"channels": "grey"} if len(mean) == 1 else {})
