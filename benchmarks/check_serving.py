"""Which rules of serving do other servers keep? `check-serving` on ours, MLServer and LitServe.

Each has the graphs of shipped artifacts: MLServer a runtime of twenty lines over ONNX Runtime, for
images and for tokens, with its own batching and without; LitServe an API of as many, with its own
batching, one image in JSON a request; see `benchmarks.peers`. A row is a rule that was tried and
what was seen: 1 where it held.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from benchmarks.peers.running import TENSORS, environment, serving_peer
from benchmarks.support.rows import Row, figure
from benchmarks.support.server import ROOT, serving
from robustness.remote.check_serving import check_serving
from robustness.remote.connection import Connection, Manners
from robustness.remote.mapping import MappingFile, mapped
from robustness.remote.model import RemoteModel
from robustness.remote.tokens import read_tokens
from robustness.remote.v2 import describe
from runtimes.artifact import open_artifact

IMAGES, TEXTS = "fashion-elliptical-adv", "imdb-transject"
_CASES = (
    *(
        (server, name)
        for server in ("ours", "mlserver", "mlserver-single")
        for name in (IMAGES, TEXTS)
    ),
    ("litserve", IMAGES),
)
_AT_ONCE, _PATIENCE_S = 8, 3.0


def run(*, only: str = "") -> Iterable[Row]:
    """Try every rule.

    Args:
        only: one server, of ours, mlserver, mlserver-single and litserve; empty: all of them.
    """
    for server, name in _CASES:
        if only in ("", server):
            with _opened(server, name) as model:
                for one in check_serving(model):
                    if one.outcome != "not tried":
                        about = f"{_title(server)}, {name}: {one.name}: {one.outcome}, "
                        held = float(one.outcome == "held")
                        target = 1.0 if server == "ours" else None
                        yield figure(
                            about + one.evidence, held, "held", better="higher", target=target
                        )


def _title(server: str) -> str:
    if server == "ours":
        return "our server"
    peer = TENSORS[server]
    packages = environment(peer.name).parents[1] / "lib"
    [folder] = packages.glob(f"python*/site-packages/{peer.name}-*.dist-info")
    version = folder.name.removesuffix(".dist-info").partition("-")[2]
    return peer.title.replace(peer.title.split()[0], f"{peer.title.split()[0]} {version}", 1)


@contextmanager
def _opened(server: str, name: str) -> Iterator[RemoteModel]:
    """A model of a server that runs until the end of the block."""
    artifact = open_artifact(ROOT / "artifacts" / name)
    own = serving({"ASSAY_RUNTIME": "onnx-cpu"})
    running = own if server == "ours" else serving_peer(TENSORS[server], artifact.folder)
    manners = Manners(concurrency=_AT_ONCE, patience=_PATIENCE_S)
    with running as (_, address), Connection(address, manners) as connection:
        if server == "litserve":
            spec = artifact.image_spec
            given = {"kind": "image", "channels": spec.channels}
            given |= {"height": spec.height, "width": spec.width}
            request = {"path": "/predict", "body": {"image": "$input"}}
            answer = {"rows": "", "scores": "logits", "kind": "logits"}
            whole = {"input": given, "request": request, "answer": answer}
            yield mapped(connection, name, MappingFile.model_validate(whole))
            return
        tokens = None
        if server != "ours" and name == TEXTS:
            path = artifact.folder / "tokenizer.json"
            tokens = read_tokens(path, artifact.text_spec.max_len)
        yield describe(connection, name, None, output=None, tokens=tokens)
