"""The one exception for what a user can put right: the command line prints it in a line and exits with 2."""


class InputError(ValueError):
    """A value, a file or a setting that breaks a rule.

    The message gives the value, the rule and the way out:

    >>> raise InputError("rho=-1: must be ≥ 0; use SGD for plain descent")
    Traceback (most recent call last):
        ...
    bayesmooth.errors.InputError: rho=-1: must be ≥ 0; use SGD for plain descent
    """
