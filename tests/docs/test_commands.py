"""Every command in README and docs exists, with its options, files and configurations.

Commands are taken from blocks of bash and from code within lines. Words in capitals, `…`, `<…>`
and variables of the shell stand for something else and are not checked.
"""

import re
import shlex
from argparse import ArgumentParser
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from highrank_plugins.studies.definition import script_options
from tests.docs.test_prose import PAGES

ROOT = Path(__file__).parents[2]
PROGRAMS = ("highrank", "bash", "python", "pytest", "torchrun")
# layers that pages define themselves
OWN_LAYERS = {"wave", "arcsinh", "cooled"}
OWN_COMMANDS = {"confidence"}
OWN_OPTIONS = {
    "--head-wave-start", "--head-cubed-c", "--head-arcsinh-c", "--head-temperature",
    "--head-cool-bias", "--head-arcsinh-scale", "--head-arcsinh-lr",
}  # fmt: skip
# of SLURM and torchrun
OTHER_OPTIONS = {
    "--signal", "--kill-on-bad-exit", "--gpus-per-task", "--gpu-bind", "--nproc-per-node",
    "--module",
}  # fmt: skip
SYNTHETIC = "recipes.synthetic"
PLACEHOLDER = re.compile(r"[A-Z]{2,}|[…$<{*]|\.\.\.|\b[A-Z]\b")

pytestmark = pytest.mark.xdist_group("documented_commands")  # they share the parsers of fairseq


def commands_of(text: str) -> Iterator[list[str]]:
    blocks = re.findall(r"```(?:bash|console)\n(.*?)```", text, re.DOTALL)
    plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    plain = re.sub(r"<!--.*?-->", "", plain, flags=re.DOTALL)
    blocks += re.findall(r"(?m)(?:^    (?=\S).*\n)+", plain)
    spans = re.findall(r"`((?:highrank|fairseq-|bash |python |pytest )[^`]*)`", plain)
    for block in [*blocks, *(" ".join(span.split()) for span in spans)]:
        joined = re.sub(r"\\\n", " ", block).replace("$(highrank --user-dir)", "USER_DIR")
        joined = re.sub(r"(?m)(?:^|\s)#.*$", "", joined)
        for line in re.split(r"\n|;|&&|(?<!')\|(?!')|\bdo\b", joined):
            try:
                words = shlex.split(line)
            except ValueError:  # a quotation over several lines
                words = line.split()
            words = words[next((i for i, w in enumerate(words) if is_program(w)), len(words)) :]
            if len(words) > 1 and words[1] != "=":
                yield words


def is_program(word: str) -> bool:
    return word in PROGRAMS or re.fullmatch(r"fairseq-[a-z-]+", word) is not None


def options_in(words: list[str]) -> dict[str, str]:
    """Return option → value of the words after a command; a bare option has no value."""
    found = {}
    for place, word in enumerate(words):
        if re.match(r"--[a-z]", word):
            name, equals, value = word.partition("=")
            following = words[place + 1] if place + 1 < len(words) else ""
            found[name] = value if equals else "" if following.startswith("--") else following
    return found


@cache
def highrank_commands() -> dict[tuple[str, ...], set[str]]:
    """Return each command of `highrank` with its options."""
    import typer

    from highrank_plugins.cli import app, as_command, make_group
    from recipes.synthetic.__main__ import EXPERIMENTS

    def walk(command, names: tuple[str, ...]) -> None:
        found[names] = {"--help"}.union(*({*p.opts, *p.secondary_opts} for p in command.params))
        for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
            walk(command.get_command(context, name), (*names, name))

    found: dict[tuple[str, ...], set[str]] = {}
    root = typer.main.get_command(app)
    context = root.make_context("highrank", ["doctor"], resilient_parsing=True)
    walk(root, ())
    walk(as_command(make_group(EXPERIMENTS)), (SYNTHETIC,))
    return found


@cache
def fairseq_names() -> tuple[set[str], dict[str, set[str]]]:
    """Return all options of fairseq's commands with our user-dir, and the names in registries."""
    from fairseq import models, options, tasks
    from fairseq.dataclass.utils import gen_parser_from_dataclass
    from fairseq.registry import REGISTRIES

    import highrank_plugins

    highrank_plugins.register()
    every = ArgumentParser(conflict_handler="resolve", allow_abbrev=False)
    parsers = [
        options.get_training_parser(), options.get_generation_parser(interactive=True),
        options.get_eval_lm_parser(), options.get_validation_parser(),
        options.get_preprocessing_parser(),
    ]  # fmt: skip
    registries = {name: registry["registry"] for name, registry in REGISTRIES.items()}
    registries |= {"task": tasks.TASK_REGISTRY, "arch": models.ARCH_MODEL_REGISTRY}
    for registry in registries.values():
        for entry in registry.values():
            if callable(getattr(entry, "add_args", None)):
                entry.add_args(every)
            if getattr(entry, "__dataclass", None):
                gen_parser_from_dataclass(every, entry.__dataclass())
    known = set(every._option_string_actions).union(*(p._option_string_actions for p in parsers))
    names = {name.replace("_", "-"): set(registry) for name, registry in registries.items()}
    return known | {"--user-dir"}, names


def problems(words: list[str]) -> list[str]:
    if "--" in words:
        cut = words.index("--")
        return problems(words[:cut]) + (problems(words[cut + 1 :]) if words[cut + 1 :] else [])
    program = words[0]
    if program == "torchrun":
        rest = words[words.index("--module") + 2 :] if "--module" in words else []
        return problems(["highrank", *rest]) if rest else []
    if program == "highrank":
        return highrank_problems(words[1:])
    if words[:3] == ["python", "-m", SYNTHETIC]:
        return highrank_problems(words[2:])
    if words[1] == "-m" and words[2].startswith("scripts."):
        return script_problems(f"{words[2].replace('.', '/')}.py", words[3:])
    if program.startswith("fairseq-"):
        return fairseq_problems(words)
    if program == "pytest":
        return pytest_problems(words[1:])
    script = words[1]
    if program in ("bash", "python") and "/" in script and not PLACEHOLDER.search(script):
        return script_problems(script, words[2:])
    return []


def pytest_problems(words: list[str]) -> list[str]:
    """Return the paths that do not exist."""
    return [f"no {w}" for w in words if w.startswith("tests/") and not (ROOT / w).exists()]


def highrank_problems(words: list[str]) -> list[str]:
    known = highrank_commands()
    names: tuple[str, ...] = ()
    if OWN_COMMANDS.intersection(words):
        return []
    for word in words:
        if PLACEHOLDER.search(word) or (*names, word) not in known:
            break
        names = (*names, word)
    given = options_in(words)
    rest = words[len(names) :]
    group = any(other[: len(names)] == names and other != names for other in known)
    if group and rest and not rest[0].startswith("-"):
        unknown = not PLACEHOLDER.search(rest[0])
        return [f"no command {' '.join(['highrank', *names, rest[0]])}"] if unknown else []
    return [f"highrank {' '.join(names)}: no {name}" for name in given if name not in known[names]]


def fairseq_problems(words: list[str]) -> list[str]:
    options, registries = fairseq_names()
    given = options_in(words)
    found = [f"{words[0]}: no {n}" for n in given if n not in options | OWN_OPTIONS]
    for kind, names in registries.items():
        value = given.get(f"--{kind}", "")
        own = value.rpartition("_")[2] in OWN_LAYERS
        if value and not own and not PLACEHOLDER.search(value) and value not in names:
            found.append(f"{words[0]}: no {kind} {value}")
    return found


def script_problems(script: str, words: list[str]) -> list[str]:
    path = ROOT / script
    if not path.is_file():
        return [f"no {script}"] if script.startswith(("scripts/", "recipes/")) else []
    source = path.read_text(encoding="utf-8")
    given = options_in(words)
    if path.name != "run.sh":
        return [
            f"{script}: no {name}"
            for name in given
            if name not in source and f"    {name[2:].replace('-', '_')}: " not in source
        ]
    known = {f"--{name.replace('_', '-')}" for name in script_options(path.parent)}
    found = [f"{script}: no {name}" for name in given if name not in known | {"--help"}]
    conf, small = given.get("--conf", ""), given.get("--scale") == "small"
    places = [path.parent / "conf" / part / f"{conf}.yaml" for part in ("", "small")[: 1 + small]]
    if conf and not PLACEHOLDER.search(conf) and not any(place.is_file() for place in places):
        found.append(f"{script}: no --conf {conf}")
    return found


@cache
def every_option() -> set[str]:
    """Return all options that a page may name by themselves."""
    known = fairseq_names()[0].union(OWN_OPTIONS, OTHER_OPTIONS, *highrank_commands().values())
    for path in [*ROOT.glob("recipes/*/run.sh"), *ROOT.glob("scripts/*.*")]:
        source = path.read_text(encoding="utf-8")
        known.update(re.findall(r"--[a-z][a-z-]+", source))
        if path.name == "run.sh":
            known.update(f"--{name.replace('_', '-')}" for name in script_options(path.parent))
    return known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_and_commands_exist(page):
    text = page.read_text(encoding="utf-8")
    spans = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    named = {name for span in spans for name in re.findall(r"(?<![\w-])--[a-z][\w-]*", span)}
    assert named - every_option() - {"--head-"} == set()
    assert [problem for words in commands_of(text) for problem in problems(words)] == []


@pytest.mark.parametrize(("command", "said"), [
    ("highrank analyse card C --tokns 5", "highrank analyse card: no --tokns"),
    ("highrank launch --nodes 2 -- fairseq-train d --arch transformer_mixtap", "no arch"),
    ("fairseq-train data-bin --head-komponents 4", "no --head-komponents"),
    ("bash recipes/ptb/run.sh --conf yang2018/moss", "no --conf yang2018/moss"),
    ("pytest --run-long tests/fault", "no tests/fault"),
])  # fmt: skip
def test_a_wrong_command_is_found(command, said):
    (words,) = commands_of(f"```bash\n{command}   # comment --no-option\n```")
    (problem,) = problems(words)
    assert said in problem
