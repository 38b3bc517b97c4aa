"""The one exception of the command line."""


class CannotStart(Exception):
    """One sentence for the person at the terminal: what is wrong and what to do. Ends the command with status 1."""
