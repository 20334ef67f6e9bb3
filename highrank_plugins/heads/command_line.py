"""Describe the arguments of a structure to a command line."""

from __future__ import annotations

from typing import Any, ClassVar


class CommandLine:
    """Offer each argument of the constructor as an option of the same name, or change that.

    An argument in `set_by` is not an option itself. The structure lists the options in its place in
    `other_options`, and `arguments` computes the argument from them.
    """

    # what each option does, by its name, for the help of fairseq's commands
    option_help: ClassVar[dict[str, str]] = {}
    # arguments that are not options, each with the option that sets it; None: the model sets it
    set_by: ClassVar[dict[str, str | None]] = {}
    # the options that set those arguments, with their defaults
    other_options: ClassVar[dict[str, bool | int | float | str]] = {}
    # the defaults of options that language models change
    language_model_defaults: ClassVar[dict[str, bool | int | float | str]] = {}

    @classmethod
    def arguments(cls, options: dict[str, Any], num_classes: int) -> dict[str, Any]:
        """Return the arguments in `set_by` that the values of `other_options` mean.

        Raises:
            ValueError: a value out of range; the message starts with the option's name.
        """
        return {}

    def needs_sorted_classes(self) -> str | None:
        """Return why class ids must be sorted by falling count, and how to do without.

        None if any order serves.
        """
        return None
