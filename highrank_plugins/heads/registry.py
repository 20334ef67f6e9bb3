"""Map names to classes, and say which options, constants and bases' attributes a class has."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Set
from operator import attrgetter
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from highrank_plugins.common.names import class_of, did_you_mean, layer_name
from highrank_plugins.common.torch_state import kept_random_numbers
from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads.libraries import evaluating
from highrank_plugins.own_layers.kept_state import PLAIN, KeptState
from highrank_plugins.own_layers.ours import is_ours
from highrank_plugins.own_layers.trial import OF_LAYER

T = TypeVar("T", bound=type)


def unknown_name_message(kind: str, name: str, known: Iterable[str]) -> str:
    """Return a message for a name that is not among `known`: the nearest, then all of them."""
    names = sorted(known)
    listed = ", ".join(names) or "none"
    return f"unknown {kind} {name!r}{did_you_mean(str(name), names)}; known: {listed}"


def check_options(title: str, given: Iterable[str], known: Set[str]) -> None:
    """Refuse an option that a class does not have."""
    for option in given:
        if option not in known:
            names = sorted(known)
            raise ValueError(
                f"the {title} has no option {option!r}{did_you_mean(option, names)}; "
                f"known: {', '.join(names) or 'none'}"
            )


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return all parameters by name; parametrised ones as their parametrisation computes them."""
    found: dict[str, Tensor] = {}
    for path, parameter in module.named_parameters(remove_duplicate=False):
        outer, parametrised, inner = path.partition("parametrizations.")
        name = outer + inner.partition(".")[0] if parametrised else path
        if name not in found:
            found[name] = attrgetter(name)(module) if parametrised else parameter
    return found


def keep_what_holds(cls: type) -> None:
    """Give attributes their versions of the base where a class replaces the base's function.

    The base's `needs` name methods from which all follows, and the attributes that hold for this
    method alone: a fused loss or a kernel has the gradient of one function written out, and
    measures rely on methods such as `nll_of_logits`. A class keeps them if it implements the
    function first, and what it defines itself. The method resolution order decides, so that mixins
    count, too.
    """
    order = cls.__mro__
    origin: Any = next(c for c in order if "needs" in vars(c))
    functions = [c for c in order if not vars(c).keys().isdisjoint(origin.needs)]
    if not {*functions[1:]} - {origin}:
        return
    for name in {n for f in origin.needs if f in vars(functions[0]) for n in origin.needs[f]}:
        owner = next(c for c in order if name in vars(c))
        is_older = order.index(owner) > order.index(functions[0])
        if is_older and owner not in origin.__mro__:
            setattr(cls, name, vars(origin)[name])


class Registry(Generic[T]):
    """Register classes of one kind by name; their options are arguments of their constructors.

    Arguments in `common`, which every class of the kind has, are none. `base` is their base.
    """

    def __init__(self, kind: str, common: Iterable[str] = (), base: type = object) -> None:
        self.kind = kind
        self.common = frozenset(common)
        self.base = base
        self._classes: dict[str, T] = {}
        self._listeners: list[Callable[[], object]] = []

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers a class; it raises what a listener raises."""
        if not isinstance(name, str):
            raise UserError(f"{self.kind}: give the name of the class, as in @register_…('own')")

        def add(cls: T) -> T:
            if name in self._classes:
                raise UserError(f"{self.kind} {name!r} is already registered; choose another name")
            if problem := self._problem(name, cls):
                title = f"{self.kind} {name!r} of class {getattr(cls, '__name__', repr(cls))}"
                raise UserError(f"{title}: {problem}")
            self._classes[name] = cls
            try:
                for listener in self._listeners:
                    listener()
            except ValueError:
                del self._classes[name]
                raise
            cls.registered_name = name  # type: ignore[attr-defined]  # T is any class
            return cls

        return add

    def _problem(self, name: str, cls: Any) -> str | None:
        """Return why a class cannot be registered under a name; None if it can."""
        base, constants = self.base, getattr(cls, "constants", None)
        needs = [*getattr(base, "needs", ())]
        if not (isinstance(cls, type) and issubclass(cls, base)):
            kind = base.__name__
            return f"it is not a {kind}; register a class that inherits from {kind}"
        if needs and all(getattr(cls, n) is getattr(base, n) for n in needs):
            return (f"it has no {' and it has no '.join(needs)}, from which the loss is computed "
                    "(forward is not); write it")  # fmt: skip
        if not name.isidentifier():
            return ("a name has letters, digits and underscores, and begins with a letter; choose "
                    "another name")  # fmt: skip
        if "name" in inspect.signature(cls).parameters:
            return ("the argument name of its constructor is the layer's own name; call the "
                    "argument otherwise")  # fmt: skip
        if isinstance(constants, str):
            return f"`constants` is text; write a tuple, ({constants!r},)"
        return None

    def listen(self, listener: Callable[[], object]) -> None:
        """Call `listener` now, and after each later registration."""
        listener()
        self._listeners.append(listener)

    def unregister(self, name: str) -> None:
        """Remove a class, so that a test or a notebook can register a new version."""
        del self._classes[name]

    def names(self) -> list[str]:
        """Return the registered names, sorted."""
        return sorted(self._classes)

    def find(self, name: str) -> T:
        """Return the class called `name`."""
        if name not in self._classes:
            raise ValueError(unknown_name_message(self.kind, name, self._classes))
        return self._classes[name]

    def title(self, name: str) -> str:
        """Return a registered name with its class, for messages: `head 'mos' of class …`."""
        return f"{self.kind} {name!r} of class {self.find(name).__name__}"

    def build(self, name: Any, **options: Any) -> Any:
        """Build an instance of the class called `name`, or return `name` if it is one already.

        Raises:
            ValueError: unknown name or option (with the nearest match), or a value out of range.
        """
        if isinstance(name, self.base):
            if options:
                raise ValueError(
                    f"options {sorted(options)} given with a {self.kind} that is built already; "
                    "pass them to its constructor"
                )
            return name
        if not isinstance(name, str):
            raise ValueError(
                f"{self.kind}: expected a name or an instance of {self.base.__name__}, got "
                f"{name!r}; write a class with {next(iter(self.base.needs))}, and pass an instance"  # type: ignore[attr-defined]  # T is any class
            )
        cls = self.find(name)
        check_options(f"{self.kind} {name!r}", options, {*self.options(name), *self.common})
        return built_with_whole_state(lambda: cls(**options))

    def options(self, name: str) -> dict[str, Any]:
        """Return the options of one class with their defaults.

        A whole number as default of a `float` becomes one; no default is `inspect.Parameter.empty`.
        """
        return self._options_of(self.find(name))

    def _options_of(self, cls: type) -> dict[str, Any]:
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        parameters = inspect.signature(cls).parameters.values()
        return {
            p.name: float(p.default)
            if type(p.default) is int and p.annotation in (float, "float")
            else p.default
            for p in parameters
            if p.kind in named and p.name not in self.common
        }

    def constants(self, instance: Any) -> dict[str, Any]:
        """Return the options that change the function of `instance`, but none of its parameters.

        A class lists them in `constants`. Of the options that its list does not cover they are all
        that the instance keeps as attributes with plain values.
        """
        listed = instance.constants or ()
        for name in listed:
            if not hasattr(instance, name):
                raise UserError(
                    f"{layer_name(instance)}: `constants` of class {type(instance).__name__} lists "
                    f"{name!r}, but the layer has no such attribute; keep it as self.{name}, or "
                    "remove it from the list"
                )
        kept = {name: getattr(instance, name, None) for name in self._uncovered(instance)}
        plain = {name: value for name, value in kept.items() if isinstance(value, PLAIN)}
        return {name: getattr(instance, name) for name in listed} | plain

    def function(self, instance: Any) -> dict[str, Any]:
        """Return the name of a layer's class, or of the base that has one, and its constants."""
        name = getattr(instance, "registered_name", class_of(instance).__name__)
        return {"name": name} | self.constants(instance)

    def hidden_options(self, instance: Any) -> list[str]:
        """Return the options with plain defaults that `constants` cannot find in `instance`."""
        options = self._uncovered(instance).items()
        return [n for n, v in options if isinstance(v, PLAIN) and not hasattr(instance, n)]

    def _uncovered(self, instance: Any) -> dict[str, Any]:
        """Return the options, with defaults, that no list of constants of a base covers."""
        if "constants" in vars(instance):
            return {}
        with_list = (c for c in type(instance).__mro__ if vars(c).get("constants") is not None)
        covered = next(map(self._options_of, with_list), {})
        options = self._options_of(type(instance))
        return {name: default for name, default in options.items() if name not in covered}


def built_with_whole_state(build: Callable[[], Any]) -> Any:
    """Return a new layer; one of a user's must have its whole function in its state dictionary.

    Random numbers that a constructor keeps elsewhere would be others in each program.
    """
    layer = build()
    tensors = [torch.empty(0), *layer.state_dict().values()]
    if is_ours(layer) or any(t.is_meta for t in tensors):  # device meta has no numbers
        return layer
    state = {name: value.clone() for name, value in layer.state_dict().items()}
    with KeptState(layer), kept_random_numbers(tensors[0]), torch.no_grad():
        other = build()
        other.load_state_dict(state)
        x = torch.randn(4, getattr(layer, "feature_dim", 8))
        try:
            values = [_in_use(one, x) for one in (layer, other)]
        except OF_LAYER:  # the first loss says what is wrong
            values = []
    if values and not torch.allclose(values[0], values[1], equal_nan=True):
        raise UserError(
            f"{type(layer).__name__}: built twice, with one state dictionary, it computes two "
            "functions, so a checkpoint would not hold the layer; keep what its constructor draws "
            "in an nn.Parameter or a buffer (self.register_buffer)"
        )
    return layer


def _in_use(layer: Any, x: Tensor) -> Tensor:
    """Return what a layer computes when it is not training, from one seed."""
    with evaluating(layer):
        torch.manual_seed(0)
        parameters = [p.dtype for p in layer.parameters() if p.is_floating_point()]
        return layer(x.to(parameters[0] if parameters else x.dtype))
