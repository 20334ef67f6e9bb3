"""Check the options of a model by fairseq's own parser, tell what it costs, and match its cost.

A model is built without its weights. Costs are parameters, compute per predicted token, and disk
space. A matched control has the number of parameters, the compute, or the widths of another model.
"""

import math
import re
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, NoReturn

import highrank_plugins
from highrank_plugins.common.blocks import ConfigurationError, Tree
from highrank_plugins.common.names import did_you_mean, flag, option_name
from highrank_plugins.common.options import WrongNumbers
from highrank_plugins.common.user_error import UserError
from highrank_plugins.training.blocks import PROGRAMS
from highrank_plugins.training.command_line import user_dir, words_of
from highrank_plugins.training.configuration import Configuration

By = Literal["parameters", "compute", "width"]
TOLERANCE = 0.005
COUNTED = 2  # raise it if costs are counted otherwise: studies then solve for sizes again
# options that set a trunk's width, then those that fill the rest of a step
_FREE = {
    "awd_lstm_lm": (
        ("decoder_embed_dim", "head_embed_dim", "decoder_last_hidden_size"),
        ("decoder_hidden_size",),
    ),
    "transformer_lm": (("decoder_embed_dim", "head_embed_dim"), ("decoder_ffn_embed_dim",)),
    "transformer": (
        ("encoder_embed_dim", "decoder_embed_dim", "head_embed_dim"),
        ("encoder_ffn_embed_dim", "decoder_ffn_embed_dim"),
    ),
    "lstm": (
        ("decoder_embed_dim", "head_embed_dim", "decoder_out_embed_dim", "encoder_embed_dim"),
        ("encoder_hidden_size", "decoder_hidden_size"),
    ),
}


@dataclass(frozen=True)
class ModelSize:
    """Hold what a model costs; tied parameters count once.

    `compute` is floating-point operations of the matrix products for one token, forwards, without
    attention's products of positions. `options` are those with whole numbers.
    """

    parameters: int
    compute: int
    options: dict[str, int]

    def of(self, by: By) -> int:
        """Return parameters or compute."""
        return self.compute if by == "compute" else self.parameters


def free_options(options: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the options that may change: widths, and sizes that fill the rest."""
    arch = str(options.get("arch", ""))
    for trunk, groups in _FREE.items():
        if arch.startswith(trunk):
            return groups
    raise ValueError(
        f"train.arch {arch}: its sizes are unknown; name the ones to change with --free"
        f"{did_you_mean(arch, _FREE)}"
    )


def measure(options: Mapping[str, Any], words: int) -> ModelSize:
    """Return the cost of the model of these fairseq-train options, for a number of words.

    The model takes no memory for weights.
    """
    highrank_plugins.register()
    from fairseq.options import get_training_parser, parse_args_and_arch  # patched by hooks

    args = parse_args_and_arch(get_training_parser(), ["data", *words_of(options)])
    model = on_meta(args, task_of(words))
    free_options(options)  # refuses a trunk whose products and sizes are unknown
    numbers = {name: value for name, value in vars(args).items() if type(value) is int}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return ModelSize(parameters, _compute(model), numbers)


def task_of(target: int, source: int | None = None) -> Any:
    """Replace the task of a model without data by numbers of words; their counts fall."""
    from fairseq.data import Dictionary

    made = []
    for size in (target, source or target):
        made.append(words := Dictionary())
        for index in range(len(words), size):
            words.add_symbol(f"#{index}", n=size - index + 1)
    return SimpleNamespace(dictionary=made[0], target_dictionary=made[0], source_dictionary=made[1])


def on_meta(args: Namespace, task: Any) -> Any:
    """Return the model of options as fairseq reads them, which takes no memory for weights."""
    import torch
    from fairseq.models import build_model
    from omegaconf import OmegaConf

    plain = (str, int, float, type(None))
    values = {name: value for name, value in vars(args).items() if isinstance(value, plain)}
    # gives what fairseq's conversion gives for the model's options, a hundred times faster
    cfg = OmegaConf.create({**values, "_name": args.arch})
    try:
        with torch.device("meta"):
            return build_model(cfg, task)
    except AssertionError as error:  # so fairseq refuses sizes
        raise UserError(f"fairseq refuses the sizes of {args.arch}: {error}") from None


def _compute(model: Any) -> int:
    from torch import nn

    head = model.decoder.output_projection
    tables = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    apart = {id(tensor) for tensor in [*head.parameters(), *tables]}
    trunk = sum(p.numel() for p in model.parameters() if p.dim() > 1 and id(p) not in apart)
    width = getattr(head, "feature_dim", head.weight.size(1))  # a stock layer is one matrix
    one, two = (sum(map(math.prod, matrix_products(head, tokens, width))) for tokens in (1, 2))
    return 2 * (trunk + two - one)  # without what a batch needs once, as a matrix of low rank


def matrix_products(layer: Any, tokens: int, width: int) -> list[tuple[int, int, int]]:
    """Return (rows, inner, columns) of the products of a forward pass of a layer on device meta."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    found: list[tuple[int, int, int]] = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # torch's
            if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
                left, right = args[-2:]
                found.append((*left.shape, right.shape[1]))
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), torch.device("meta"), Products():
        layer(torch.empty(tokens, width))
    return found


@dataclass(frozen=True)
class Match:
    """Hold the options that were found, their cost, and the target."""

    options: dict[str, int]
    size: ModelSize
    target: ModelSize

    def deviation(self, by: By) -> float:
        """Return the relative deviation from the target."""
        return self.size.of(by) / self.target.of(by) - 1


def solve(
    options: Mapping[str, Any],
    reference: Mapping[str, Any],
    by: By,
    words: int,
    free: Sequence[str] = (),
    step: int = 4,
) -> Match:
    """Return sizes at which one model costs as much as another.

    They are multiples of `step` and of the numbers of heads. Widths change in proportion. Where a
    step of them is too much, other sizes fill up the rest.
    """
    target = measure(reference, words)
    start = measure(options, words)
    widths, fill = (free, ()) if free else free_options(options)
    widths = [name for name in widths if name in start.options or name in free]
    if by == "width":
        same = {n: target.options[n] for n in (*widths, *fill) if n in target.options}
        if not same:
            raise ValueError(f"the two models share no size among {', '.join([*widths, *fill])}")
        return Match(same, measure({**options, **same}, words), target)
    values = {name: _size(name, start) for name in [*widths, *fill]}
    heads = [n for name, n in start.options.items() if name.endswith("attention_heads")]
    step = math.lcm(step, *heads)
    found: list[Match] = []

    def excess(sizes: Mapping[str, int]) -> int:
        return measure({**options, **sizes}, words).of(by) - target.of(by)

    for names, multiple in ((widths, step), (fill, step), (fill, 1)):
        if names:
            values |= _closest(values, names, multiple, excess)
            size = measure({**options, **values}, words)
            found.append(Match(dict(values), size, target))
            if abs(found[-1].deviation(by)) <= TOLERANCE:
                return found[-1]
    best = min(found, key=lambda match: abs(match.deviation(by)))
    raise ValueError(
        f"no sizes are within {TOLERANCE:.1%} of {target.of(by):,}: the nearest, {best.options}, "
        f"have {best.size.of(by):,}; give other options with --free, or a smaller --step"
    )


def _size(name: str, start: ModelSize) -> int:
    if name not in start.options:
        near = did_you_mean(name, start.options)
        raise ValueError(f"--free {name}: not a whole number in block train{near}")
    return start.options[name]


def _closest(
    values: Mapping[str, int],
    names: Sequence[str],
    multiple: int,
    excess_of: Callable[[Mapping[str, int]], int],
) -> dict[str, int]:
    """Return the sizes, scaled in proportion, at which the cost is nearest the target's."""

    def scaled(units: int) -> dict[str, int]:
        scale = units * multiple / values[names[0]]
        sizes = {name: max(1, round(values[name] * scale / multiple)) for name in names}
        return {name: units * multiple for name, units in sizes.items()}

    def excess(units: int) -> int:
        return excess_of({**values, **scaled(units)})

    low, high = 0, max(1, round(values[names[0]] / multiple))
    found = excess(high)
    while found < 0:
        low, high, before = high, 2 * high, found
        if (found := excess(high)) <= before:
            raise ValueError(f"the cost does not rise with {', '.join(names)}: free other options")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if excess(middle) >= 0 else (middle, high)
    nearest = min(filter(None, (low, high)), key=lambda units: abs(excess(units)))
    return scaled(nearest)


def check_options(configuration: Configuration, tree: Tree) -> None:
    """Check the options in the blocks of fairseq's commands; imports it (seconds)."""
    problems: list[str] = []
    found: dict[str, dict[str, str]] = {}
    for tool in filter(partial(getattr, configuration), PARSERS):  # blocks that are not empty
        found[tool] = _problems(tool, configuration.options(tool))
        inherited = found.get("train", {}) if tool == "finetune" else {}
        problems += [
            f"{tree.place((tool, name))}: {tool}.{name}: {problem}"
            for name, problem in found[tool].items()
            if inherited.get(name) != problem
        ]
    if problems:
        raise ConfigurationError("\n".join(problems))


def check_command(words: Sequence[str]) -> None:
    """Check the options of a command `fairseq-train …`, as it would; imports it (seconds)."""
    highrank_plugins.register()
    from fairseq import options

    parser = options.get_training_parser()
    parser.prog = words[0]
    _check_model(options.parse_args_and_arch(parser, list(words[1:])))


def _problems(tool: str, options: Mapping[str, object]) -> dict[str, str]:
    """Return what is wrong with options, by name, as the command would say it."""
    highrank_plugins.register()
    from fairseq import options as fairseq  # now with our checks

    parser = getattr(fairseq, PARSERS[tool])()
    parser.prog, parser.exit = PROGRAMS[tool], _refuse
    try:
        words = ["data", *user_dir(options), *words_of(options)]
        _check_model(fairseq.parse_args_and_arch(parser, words))
        return {}
    except WrongNumbers as wrong:
        own = {name: text for name, text in wrong.problems.items() if name in options}
        return own or dict(wrong.problems)
    except UserError as error:
        actions = parser._option_string_actions  # argparse has no public list
        for name, value in options.items():
            is_flag = getattr(actions.get(flag(name)), "nargs", None) == 0
            if is_flag and not isinstance(value, bool):
                return {name: f"{value!r}: it is a flag: write true or false"}
        # the first option in the message, apart from the layer's name before the message
        text = re.sub(r"^--head(-pointwise|-vocabulary)? \S+: ", "", str(error))
        named = map(option_name, re.findall(r"--[\w-]+", text))
        return {next((name for name in named if name in options), "arch"): str(error)}


def _refuse(_code: int, message: str) -> NoReturn:
    """Raise what a parser says, without the name of its command, in place of its exit."""
    raise UserError(message.partition(": error: ")[2].strip())


def _check_model(args: Namespace) -> None:
    """Check the options of an arch with one of our output layers: build it for 1,000 words."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    if hasattr(ARCH_MODEL_REGISTRY.get(getattr(args, "arch", "")), "attach_head"):
        on_meta(args, task_of(1000))


# name of the function of fairseq.options that makes the parser
PARSERS = {
    "train": "get_training_parser",
    "finetune": "get_training_parser",
    "generate": "get_generation_parser",
    "evaluate": "get_eval_lm_parser",
}
