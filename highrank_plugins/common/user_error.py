"""Name the errors that a user can mend."""


class UserError(ValueError):
    """Report what was asked for and cannot be done; the message says what to change.

    Commands print the message alone, without a traceback, and end with exit code 2.
    """
