"""The options of the command line."""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from core.command import Parser
from core.names import nearest
from robustness.attacks.base import Option, options
from robustness.spec import ATTACKS

_MANY: dict[str, Any] = {"nargs": "+", "action": "extend"}
_WHOLE: dict[str, Any] = {"type": int, "metavar": "N"}
_SHOWN = 5  # values of a default; the names of 15 corruptions are told otherwise
_BUDGETS = ("eps", "norm")
_ONLY_IN_SPEC = ("alpha", "attack", "params")  # those of one attack alone
OPTIONS: dict[str, dict[str, Option]] = {}
"""Every option with the attacks that know it."""
for _name, _kind in ATTACKS.items():
    for _known in options(_kind):
        if _known.name not in _ONLY_IN_SPEC:
            OPTIONS.setdefault(_known.name, {})[_name] = _known


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = Parser(
        prog="./assay",
        description="Measure how a classifier holds under attack, and check such measurements.",
        epilog="docs/guides/evaluate.md explains attacks, figures and files.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, add, told, epilog in (
        ("evaluate", _add_evaluate, "attack a model and write a report", _EVALUATE),
        ("verify", _add_verify, "score what a report has stored again, and confirm or refute it",
         _VERIFY),
        ("convert", _add_convert, "write a report's images as properties for verifiers", _CONVERT),
        ("replay", _add_replay, "try a verifier's answers on the served model", _REPLAY),
        ("check-serving", _add_check, "try whether a server answers right", _CHECK),
    ):  # fmt: skip
        command = commands.add_parser(
            name, help=told, description=f"{told[0].upper()}{told[1:]}.",
            epilog=epilog.format(attacks="\n".join(_attacks()), remote=_REMOTE),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        add(command)
    return top


_EVALUATE = """{attacks}

example:
  ./assay evaluate --artifact artifacts/fashion-elliptical-adv \\
      --data artifacts/samples/fashion-mnist --attack fgsm pgd --eps 1/255 4/255 \\
      --output first

{remote}
exit codes: 0 the gate held, or there was none; 1 the gate failed; 2 a bad request;
3 an attack contradicts a proof; 130 interrupted, or the deadline was reached"""
_REMOTE = """an endpoint in the place of an artifact:
  KEY=... ./assay evaluate --target https://models.example.org --model fashion --key-env KEY \\
      --data artifacts/samples/fashion-mnist --attack square --eps 8/255 --queries 500 \\
      --max-queries 50000 --output remote
"""
_VERIFY = """example:
  ./assay verify first/report.json

exit codes: 0 confirmed; 1 refuted; 2 no such report, or one of its models is not
there; 130 interrupted"""

_CONVERT = """example:
  ./assay convert first/report.json --to vnnlib --eps 0.1/255 --output properties

docs/guides/proofs.md#verifiers tells what is written.

exit codes: 0 written; 2 a bad request; 130 interrupted"""
_REPLAY = """example:
  ./assay replay first/report.json --properties properties --results results.csv \\
      --verifier "alpha-beta-CROWN 2026"

exit codes: 0 read; 2 a bad request; 3 the model is misled where the verifier proved that nothing
misleads it; 130 interrupted"""


def _add_evaluate(command: argparse.ArgumentParser) -> None:
    command.usage = (
        "%(prog)s (--artifact DIR | --target URL --model NAME) --data SOURCE --attack NAME ... "
        "[--eps EPS ...] [OPTION ...]"
    )
    add = command.add_argument_group("what is scored").add_argument
    add("--artifact", type=Path, metavar="DIR", help="the model, as export wrote it")
    add("--compare", type=Path, metavar="DIR", help="a second model, scored on the same inputs")
    source = (
        "a folder CLASS/NAME.png (texts: .txt, or csv), a zip of one, parquet or idx files, "
        "hf:NAME[:SPLIT], or the name of a data set in the folder ASSAY_DATA"
    )
    add("--data", required=True, metavar="SOURCE", help=source)
    told = (
        "for data that call their classes otherwise than the model: a file of JSON, or JSON, such "
        'as {"automobile": "car"}; or "index", where class i of the data is class i of the model'
    )
    add("--class-map", metavar="FILE|JSON|index", help=told)
    add("--limit", **_WHOLE, help="score N inputs, drawn by the seed; default all")
    _add_target(command)
    _add_attacks(command)
    _add_figures(command)
    _add_work(command)


_CHECK = """example:
  ./assay check-serving http://127.0.0.1:3000 --model fashion-dot --junit serving.xml

exit codes: 0 every rule is kept; 1 one is broken; 2 the server cannot be asked"""


def _add_check(command: argparse.ArgumentParser) -> None:
    told = "of a server of the Open Inference Protocol V2, or of what --mapping describes"
    command.add_argument("target", metavar="URL", help=told)
    told = "how another endpoint is asked; see evaluate --target"
    command.add_argument("--mapping", type=Path, metavar="FILE", help=told)
    told = "of the model on the server; default every model of its index"
    command.add_argument("--model", metavar="NAME[:VERSION]", help=told)
    told = "the output to read; default logits, probabilities, or the only one"
    command.add_argument("--output-tensor", metavar="NAME", help=told)
    _add_key(command.add_argument)
    told = "write the findings as a file of JUnit's, too"
    command.add_argument("--junit", type=Path, metavar="FILE", help=told)
    command.add_argument("--seed", **_WHOLE, default=0, help="of the inputs; default 0")
    told = "for an answer; default 60"
    command.add_argument("--timeout", type=float, metavar="SECONDS", help=told)


def _add_key(add: Callable[..., object]) -> None:
    told = "a variable of the environment that holds the server's key, sent as a bearer token"
    add("--key-env", metavar="VARIABLE", help=told)
    add("--key-file", type=Path, metavar="FILE", help="a file that holds it")


def _add_target(command: argparse.ArgumentParser, *, verify: bool = False) -> None:
    add = command.add_argument_group(
        "an endpoint",
        "Nothing is asked twice: with --output the same command continues. --key-env and "
        "--key-file name where the key is, for it stands on no command line.",
    ).add_argument
    told = (
        "of a server of the Open Inference Protocol V2, or of what --mapping describes, asked in "
        "the place of an artifact"
    )
    add("--target", metavar="URL", help=told)
    add("--model", metavar="NAME[:VERSION]", help="of the model on the server")
    _add_key(add)
    told = "stop before more than N inputs are answered, second answers included"
    add("--max-queries", **_WHOLE, help=told)
    also = ["--rate"] if verify else []  # elsewhere an attack may own it: see `settle_rate`
    told = "send at most N inputs a second; --rate N is the same where no attack has a rate"
    add("--per-second", *also, type=float, metavar="N", help=told)
    add("--concurrency", **_WHOLE, help="requests at a time; default 2")
    add("--batch", **_WHOLE, help="inputs of a request at most; default 64")
    add("--timeout", type=float, metavar="SECONDS", help="for an answer; default 60")
    told = "how long a request is repeated after refusals (429, 503) and failures; default 300"
    add("--patience", type=float, metavar="SECONDS", help=told)
    told = (
        "how another endpoint is asked, KServe's V1 or any other of JSON or forms, or how texts "
        "become the tokens that a model of the protocol V2 reads: a YAML file"
    )
    add("--mapping", type=Path, metavar="FILE", help=told)
    told = "the output with scores or class; default logits, probabilities, or the only one"
    add("--output-tensor", metavar="NAME", help=told)
    told = "names of the classes in their order: JSON, or one a line; default what the server tells"
    add("--labels", type=Path, metavar="FILE", help=told)
    if verify:
        return
    told = (
        "a local copy of the model, as export wrote it: attacks follow its gradients, and the "
        "endpoint is asked about what they make"
    )
    add("--surrogate", type=Path, metavar="DIR", help=told)
    told = "what attacks may see of an answer: scores (default), top-K such as top-5, or label"
    add("--shows", metavar="WHAT", help=told)
    told = "of a thousand inputs, for the estimate of the cost that is told before the start"
    add("--price", type=float, metavar="AMOUNT", help=told)


def _add_attacks(command: argparse.ArgumentParser) -> None:
    images, texts = (
        ", ".join(name for name, kind in ATTACKS.items() if kind.info.input == which)
        for which in ("image", "text")
    )
    norms = sorted({norm for kind in ATTACKS.values() for norm in kind.info.norms}, reverse=True)
    euclidean = ", ".join(name for name, kind in ATTACKS.items() if "L2" in kind.info.norms)
    add = command.add_argument_group("attacks").add_argument
    told = (
        f"on images: {images}; on texts: {texts}; fields after the name hold for it alone, such as "
        "pgd:alpha=1/255; see below"
    )
    add("--attack", **_MANY, type=_named, metavar="NAME[:FIELD=VALUE]", help=told)
    told = "radii, such as 8/255 or 0.03; every attack that has a norm needs one, and runs at each"
    add("--eps", **_MANY, metavar="EPS", help=told)
    told = f"of the radii; default Linf. L2 is known to {euclidean}"
    add("--norm", choices=norms, help=told)
    told = (
        "in place of attacks, settings and figures: the spec as JSON, as a report has it under "
        "'spec'"
    )
    add("--spec", type=Path, metavar="FILE", help=told)
    add = command.add_argument_group(
        "settings of attacks",
        "Each holds for every attack named after it, in brackets with its default.",
    ).add_argument
    for name in (name for name in OPTIONS if name not in _BUDGETS):
        first = next(iter(OPTIONS[name].values()))
        shape: dict[str, Any] = _WHOLE if first.type == "integer" else {"metavar": name.upper()}
        told = f"{first.text} ({_defaults(name)})"
        if first.type == "object":
            shape = {"metavar": "FILE", "type": Path}
            told = f"{told}: JSON, or in each line a word and its own with tabs between"
        add(f"--{name}", **(_MANY if first.several else {}), **shape, help=told)


def _add_figures(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("figures").add_argument
    told = (
        "what must hold, or the command exits with 1: robust_accuracy>=0.40, "
        "clean_accuracy>=0.80 or proved_accuracy>=0.30; what is compared is the lower end "
        "of the 95 %% interval"
    )
    add("--gate", metavar="RULE", help=told)
    told = (
        "early: take the inputs in a random order, and end as soon as the gate is decided; default "
        "end, after all of them"
    )
    add("--stop", choices=("end", "early"), help=told)
    told = (
        "right is also an input whose label is among the K best classes; above 1 every attack runs "
        "to its end, which takes longer; default 1"
    )
    add("--top-k", **_MANY, type=int, metavar="K", help=told)
    add("--seed", **_WHOLE, help="all random draws derive from it; default 0")
    add = command.add_argument_group("output").add_argument
    told = (
        "keep report and inputs there; the same command continues a run that was stopped; without "
        "it figures are printed, and nothing is kept"
    )
    add("--output", type=Path, metavar="DIR", help=told)
    told = "write the figures into the artifacts, too, as the card that the service shows"
    add("--card", action="store_true", help=told)


def _add_work(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("work").add_argument
    told = "processes of this machine (default), or a Ray cluster; the results are the same"
    add("--engine", choices=("process", "ray"), default="process", help=told)
    add("--workers", **_WHOLE, help="how many; default as many as keep the cores busy")
    told = (
        "of a running cluster, for --engine ray; default one on this machine, started for the time "
        "of the command"
    )
    add("--address", metavar="HOST:PORT", help=told)
    add("--threads", **_WHOLE, default=1, help="of each worker; default 1")
    told = "stop then, with exit code 130; with --output the same command continues"
    add("--deadline", type=float, metavar="SECONDS", help=told)


def _add_verify(command: argparse.ArgumentParser) -> None:
    told = "beside its folder shards, as evaluate --output wrote them"
    command.add_argument("report", type=Path, metavar="REPORT.json", help=told)
    told = "where the models lie, found by digest: artifacts, or folders of them; default artifacts"
    command.add_argument("--artifact", type=Path, **_MANY, metavar="DIR", help=told)
    told = "compare the stored inputs with this data set, too; what evaluate --data takes"
    command.add_argument("--data", metavar="SOURCE", help=told)
    told = "score only N inputs, other ones every time; default all"
    command.add_argument("--limit", **_WHOLE, help=told)
    _add_target(command, verify=True)


def _add_convert(command: argparse.ArgumentParser) -> None:
    _add_report(command)
    told = "vnnlib: VNN-LIB 2.0, with graphs of primitive operators and instances.csv"
    command.add_argument("--to", choices=["vnnlib"], required=True, help=told)
    command.add_argument("--output", type=Path, required=True, metavar="DIR", help="a folder")
    told = "radii (l-infinity); default those of the report's attacks"
    command.add_argument("--eps", **_MANY, metavar="EPS", help=told)
    told = "seconds for each property, in instances.csv; default 300"
    command.add_argument("--timeout", **_WHOLE, default=300, help=told)
    told = "elliptical models: also weaker properties with m frozen at each unchanged image"
    command.add_argument("--frozen-metric", action="store_true", help=told)


def _add_replay(command: argparse.ArgumentParser) -> None:
    _add_report(command)
    told = "what convert wrote; outcomes.json is written there"
    command.add_argument("--properties", type=Path, required=True, metavar="DIR", help=told)
    told = "the verifier's answers, a csv as in VNN-COMP; its counterexamples lie beside or below"
    command.add_argument("--results", type=Path, required=True, metavar="FILE", help=told)
    told = "name and version of the verifier, which is recorded"
    command.add_argument("--verifier", required=True, metavar="NAME", help=told)


def _add_report(command: argparse.ArgumentParser) -> None:
    told = "of images, beside its folder shards, as evaluate --output wrote them"
    command.add_argument("report", type=Path, metavar="REPORT.json", help=told)
    told = "where the models lie, found by digest: artifacts, or folders of them; default artifacts"
    command.add_argument("--artifact", type=Path, **_MANY, metavar="DIR", help=told)


def _attacks() -> Iterator[str]:
    """Every attack with what it does and its fields, for help."""
    yield "attacks, and their fields with their defaults:"
    for name, kind in ATTACKS.items():
        known = options(kind)
        yield f"  {name:13} {kind.info.what}"
        yield f"{'':16}{', '.join(f'{one.name}{_shown(one.default)}' for one in known)}"
        yield from (f"{'':18}{one.name}: {one.text}" for one in known if one.name in _ONLY_IN_SPEC)


def _named(text: str) -> str:
    name = text.partition(":")[0]
    if name not in ATTACKS:
        raise argparse.ArgumentTypeError(f"unknown attack {name[:40]!r}; {nearest(name, ATTACKS)}")
    return text


def _defaults(setting: str) -> str:
    """Who knows a setting, and what each takes without it: "pgd 20, apgd-ce 100"."""
    return ", ".join(f"{name}{_shown(option.default)}" for name, option in OPTIONS[setting].items())


def _shown(default: Any) -> str:
    if default in (None, {}) or (isinstance(default, list) and len(default) > _SHOWN):
        return ""
    return f" {' '.join(map(str, default)) if isinstance(default, list) else default}"
