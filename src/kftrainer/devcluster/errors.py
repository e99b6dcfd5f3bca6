"""What can go wrong around a control plane, told in sentences that a person can act on.

DevClusterError
├── MissingPartError      a binary or manifest cannot be had on this machine
├── PortTakenError        somebody else listens where we should
├── ProcessDiedError      a part of the control plane ended by itself
├── NotReadyError         something did not come true in time
├── NotRunningError       there is no such control plane
└── ApiError              the API server refused a request
"""

import errno


class DevClusterError(Exception):
    """Its text is the whole message: what happened, and what to do about it."""


class MissingPartError(DevClusterError):
    """A binary or manifest is neither there nor to be had."""


class PortTakenError(DevClusterError):
    """Another program listens on the port."""


class ProcessDiedError(DevClusterError):
    """A part of the control plane ended by itself."""


class NotReadyError(DevClusterError):
    """A condition did not hold before its deadline."""


class NotRunningError(DevClusterError):
    """The named control plane is not up."""


class ApiError(DevClusterError):
    """The API server answered with an error status."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


def in_words(error: OSError) -> str:
    """What the operating system refused, and what to do about it."""
    where = f" ({error.filename})" if error.filename else ""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"The disk is full{where}: free some space and run this again."
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"No permission{where}: {error.strerror}. Is XDG_CACHE_HOME a folder of yours?"
        case _:
            return f"{error.strerror or error}{where}."
