"""Name the errors that a user can mend."""


class UserError(ValueError):
    """Report a request that cannot be fulfilled; the message says what to change.

    Commands print the message alone, without a traceback, and end with exit code 2.
    """
