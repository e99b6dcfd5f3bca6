"""Errors of the devcluster; their messages contain what to do.

DevClusterError
    ├── MissingPartError      a binary or manifest is not available on this machine
    ├── PortTakenError        another program listens on the port
    ├── ProcessDiedError      a process of the control plane ended unexpectedly
    ├── NotReadyError         a condition was not met in time
    ├── NotRunningError       the named control plane is not running
    └── ApiError              the API server rejected a request
"""

import errno


class DevClusterError(Exception):
    """Base class; the message contains what happened and what to do about it."""


class MissingPartError(DevClusterError):
    """A binary or manifest is missing and cannot be obtained."""


class PortTakenError(DevClusterError):
    """Another program listens on the port."""


class ProcessDiedError(DevClusterError):
    """A process of the control plane ended unexpectedly."""


class NotReadyError(DevClusterError):
    """A condition was not met before its deadline."""


class NotRunningError(DevClusterError):
    """The named control plane is not running."""


class ApiError(DevClusterError):
    """The API server responded with an error status."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


def in_words(error: OSError) -> str:
    """Describe an error of the operating system and what to do about it."""
    where = f" ({error.filename})" if error.filename else ""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"The disk is full{where}: free some space and run this again."
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return (
                f"{error.strerror}{where}: check that you may write there, or set XDG_CACHE_HOME "
                "to a folder that you own."
            )
        case _:
            return f"{error.strerror or error}{where}."
