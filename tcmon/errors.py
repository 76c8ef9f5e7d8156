"""The one exception that tcmon shows to people instead of a traceback."""


class TcmonError(Exception):
    """A fault that the user can mend; its text is one line that says what is wrong and what to do."""
