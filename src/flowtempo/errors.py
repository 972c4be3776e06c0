"""The one exception that stands for a person's mistake, not ours."""


class UserError(ValueError):
    """A wrong file, key or value given by the person.

    The message is one line: it names the file, key or value and the remedy. The command line prints it
    as `error: ...` without a traceback; any other exception keeps its traceback, because it is a defect.
    """
