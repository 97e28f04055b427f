"""Endpoints of JSON and of forms, as a file describes them."""

import base64
import json
from collections.abc import Callable
from email import message_from_bytes
from email.policy import HTTP
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from data.images import ImageSpec, decode_image, to_input
from robustness.__main__ import main
from robustness.remote.mapping import read_mapping
from robustness.report.schema import read_report
from tests.robustness.remote.endpoint import Endpoint, listening
from tests.robustness.remote.test_remote import CLASSES, command, flags

SPEC = ImageSpec(channels=1, height=8, width=8)
IMAGE = "input: {kind: image, channels: 1, height: 8, width: 8"
LABELS = f"labels: {json.dumps([str(index) for index in range(CLASSES)])}"
Other = Callable[[Endpoint, str, Any, bytes], Any]


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def kserve(own: Endpoint, path: str, headers: Any, body: bytes) -> Any:
    assert path == "/v1/models/m:predict"
    pixels = np.array(json.loads(body)["instances"], np.float32)
    return {"predictions": own.answers(pixels).tolist()}


def one_png(own: Endpoint, path: str, headers: Any, body: bytes) -> Any:
    """One picture at a time in base64; the best three classes by name, with probabilities."""
    assert path == "/run" and headers["x-key"] == "s3cret"
    content = base64.b64decode(json.loads(body)["image"]["b64"])
    [found] = softmax(own.answers(to_input(decode_image(content), SPEC)[None]))
    best = np.argsort(-found)[:3]
    return {"out": [{"best": [{"name": str(i), "p": float(found[i])} for i in best]}]}


def form(own: Endpoint, path: str, headers: Any, body: bytes) -> Any:
    """Pictures as the files of a form; a class for each."""
    head = f"content-type: {headers['content-type']}\r\n\r\n".encode()
    parts = list(message_from_bytes(head + body, policy=HTTP).iter_parts())
    files = [part for part in parts if part.get_filename()]
    assert [part.get_param("name", header="content-disposition") for part in parts][0] == "top_k"
    contents: list[Any] = [part.get_payload(decode=True) for part in files]
    pixels = [to_input(decode_image(content), SPEC) for content in contents]
    return [{"label": str(i)} for i in own.answers(np.stack(pixels)).argmax(1)]


def normalised(own: Endpoint, path: str, headers: Any, body: bytes) -> Any:
    """Channel last, from -1 to 1, and scores by class."""
    pixels = np.array(json.loads(body)["x"], np.float32).transpose(0, 3, 1, 2) * 0.5 + 0.5
    rows = own.answers(pixels).tolist()
    return {"data": [{"scores": {str(i): s for i, s in enumerate(row)}} for row in rows]}


@pytest.mark.parametrize(
    ("other", "text", "shows", "one_by_one"),
    [
        (kserve, IMAGE + "}", "scores", False),
        (
            one_png,
            IMAGE
            + ", encoding: png}\nrequest: {path: /run, body: {image: {b64: $input}}}\n"
            + "answer: {rows: out.0, top: {list: best, label: name, score: p, count: 3}, "
            + "kind: probabilities}\nkey: {header: x-key, prefix: ''}\n"
            + LABELS,
            "top-3",
            True,
        ),
        (
            form,
            IMAGE
            + ", encoding: png}\nrequest: {path: /form, field: images, fields: {top_k: '1'}}\n"
            + "answer: {rows: '', label: label}\n"
            + LABELS,
            "label",
            False,
        ),
        (
            normalised,
            IMAGE
            + ", layout: HWC, mean: [0.5], std: [0.5]}\nrequest: {path: /, body: {x: $inputs}}\n"
            + "answer: {rows: data, scores: scores}\n"
            + LABELS,
            "scores",
            False,
        ),
    ],
)
def test_another_protocol_is_asked_as_its_file_says(
    endpoint: Endpoint,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    other: Other,
    text: str,
    shows: str,
    one_by_one: bool,
) -> None:
    monkeypatch.setenv("TARGET_KEY", "s3cret")
    sizes: list[int] = []
    scores = endpoint.answers

    def answers(inputs: np.ndarray) -> np.ndarray:
        sizes.append(len(inputs))
        return scores(inputs)

    endpoint.answers = answers
    endpoint.other = lambda *asked: other(endpoint, *asked)
    (tmp_path / "mapping.yaml").write_text(text)
    attack = ["square:queries=8"] if shows != "label" else ["hopskipjump:queries=40"]
    more = ["--attack", *attack, "--eps", "0.3", "--mapping", str(tmp_path / "mapping.yaml")]
    more += ["--key-env", "TARGET_KEY", "--output", str(tmp_path / "out"), "--limit", "10"]
    assert main(command(endpoint, images, *more)) == 0
    report = read_report(tmp_path / "out")
    [model] = report.summary.models
    assert model.clean.top1 == 1 and model.worst["0.3"].top1 < 1
    assert model.endpoint is not None and model.endpoint.shows == shows
    assert (max(sizes) == 1) == one_by_one


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"predictions": [[0.0] * CLASSES]}, "8 inputs have 1 rows"),
        ({"other": []}, "nothing at predictions"),
        ({"predictions": [0.5] * 8}, "a row holds float in the place of scores"),
        ({"predictions": [["a"] * CLASSES] * 8}, "could not convert string"),
    ],
)
def test_an_answer_that_is_not_as_the_file_says_is_refused(
    endpoint: Endpoint,
    images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    answer: Any,
    told: str,
) -> None:
    def other(path: str, headers: Any, body: bytes) -> Any:
        count = len(json.loads(body)["instances"])
        return answer if count > 1 else {"predictions": [[0.0] * CLASSES]}

    endpoint.other = other
    (tmp_path / "mapping.yaml").write_text(IMAGE + "}")
    more = ["--attack", "corruptions", "--limit", "8"]
    more += ["--mapping", str(tmp_path / "mapping.yaml")]
    assert main(command(endpoint, images, *more)) == 2
    assert told in capsys.readouterr().err


def test_tokens_of_texts_are_made_as_the_file_says(tmp_path: Path) -> None:
    """Ids, mask and segments of a local tokenizer, against a server that reads the texts itself."""
    words = "[PAD] [UNK] [CLS] a good bad film and very not".split()
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing("[CLS] $A", special_tokens=[("[CLS]", 2)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "mapping.yaml").write_text(
        "input: {kind: tokens, tokenizer: tokenizer.json, max_len: 7}"
    )
    draw = np.random.default_rng(0)
    weights, rows = draw.normal(0, 1, (len(words), 2)), ["text,label"]

    def of_ids(ids: np.ndarray, mask: np.ndarray, segments: np.ndarray) -> np.ndarray:
        assert ids.shape[1] <= 7 and not segments.any() and (ids[:, 0] == 2).all()
        return ((weights[ids] * mask[..., None]).sum(1) / mask.sum(1)[:, None]).astype(np.float32)

    def of_texts(texts: list[str]) -> np.ndarray:
        ids = [[2, *(words.index(w) if w in words else 1 for w in t.split())][:7] for t in texts]
        return np.stack([weights[row].mean(0) for row in ids]).astype(np.float32)

    for count in range(20):
        rows.append(f"{' '.join(draw.choice(words[3:], 3 + count % 7))},{count % 2}")
    (tmp_path / "data.csv").write_text("\n".join(rows))
    shape = [{"name": name, "datatype": "INT64", "shape": [-1, -1]} for name in ("mask", "types")]
    reads_ids = Endpoint(answers=of_ids, shape=[-1, -1], datatype="INT64", extensions=())
    reads_ids.beside = shape
    reads_texts = Endpoint(answers=of_texts, shape=[-1], datatype="BYTES")
    found = []
    for name, one in (("ids", reads_ids), ("texts", reads_texts)):
        more = ["--mapping", str(tmp_path / "mapping.yaml")] if name == "ids" else []
        more += ["--attack", "typos:queries=20:edits=1", "word-swap:rate=0.3"]
        with listening(one):
            line = command(one, tmp_path / "data.csv", *more, "--output", str(tmp_path / name))
            assert main(line) == 0
            if name == "ids":
                assert main(command(one, tmp_path / "data.csv", *more[2:])) == 2
        found.append(read_report(tmp_path / name))
    assert flags(found[0]) == flags(found[1])
    told = found[0].summary.models[0].endpoint
    assert told is not None and told.told["max_len"] == "7"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("input: {kind: tokens}", "tokens have tokenizer and max_len"),
        (
            "input: {kind: tokens, tokenizer: a, max_len: 9}\nrequest: {path: /}",
            "no request, no answer",
        ),
        ("input: [", "no readable YAML"),
        ("input: {kind: text}\ninput: {kind: text}", "the key 'input' is there twice"),
        ("input: {kind: text}\nlabel: x", "label: Extra inputs are not permitted"),
        ("input: {kind: image}", "images have height and width"),
        ("input: {kind: text}\nrequest: {body: {a: b}}", "the body must hold $inputs, or $input"),
        ("input: {kind: text}\nanswer: {label: a}", "labels must name all classes"),
        ("input: {kind: text}\nanswer: {label: a, scores: b}", "one of them alone"),
        ("input: {kind: text}\nanswer: {top: {count: 3}}\nlabels: [a]", "kind must say"),
        ("!!python/object:os.x {}", "no readable YAML"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "mapping.yaml").write_text(text)
    with pytest.raises(ValueError) as error:
        read_mapping(tmp_path / "mapping.yaml")
    assert told in str(error.value)
