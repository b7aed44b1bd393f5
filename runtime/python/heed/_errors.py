"""Exceptions, one per status of the C API; str() is the sentence of heed_last_error: the field, its value, what is allowed."""


class Error(Exception):
    """A call failed; nothing was written."""


class InvalidArgument(Error, ValueError):
    """The call breaks a rule."""


class Unsupported(Error, NotImplementedError):
    """Legal, but no kernel here serves it; the message says why, per candidate."""


class WorkspaceTooSmall(Error):
    """The given workspace has fewer bytes than the call needs."""


class NoDevice(Error):
    """The device or its driver is missing."""


class OutOfMemory(Error, MemoryError):
    """Memory, or the pages of a cache, are used up."""


class Internal(Error):
    """A kernel failed."""
