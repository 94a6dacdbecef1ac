"""What can go wrong."""


class Error(Exception):
    """uzswap could not do what was asked, and why."""


class NotManaged(Error):
    """This process does not run under uzswap."""
