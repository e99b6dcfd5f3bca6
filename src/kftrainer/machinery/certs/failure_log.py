"""Logs recurring failures once when they begin and once when they end."""

from types import TracebackType

import structlog

from kftrainer.kube.client.errors import AlreadyExistsError, ConflictError, KubeError, NotFoundError

# The object was changed, created or deleted by others since it was read.
RACED = (ConflictError, AlreadyExistsError, NotFoundError)

log = structlog.get_logger(__name__)


class FailureLog:
    """The failures of a repeated operation; call `begin` and `end` around each attempt."""

    def __init__(self, of: str) -> None:
        self._log = log.bind(of=of)
        self._told: set[str] = set()
        self._now: dict[str, str] = {}
        self._is_done = True
        self.raced = False  # another writer was faster, which is not a failure

    @property
    def are_none(self) -> bool:
        """Whether the attempt is complete and need not be repeated."""
        return self._is_done and not self.raced

    def begin(self) -> None:
        """Start an attempt."""
        self._now, self._is_done, self.raced = {}, True, False

    def noted(self, what: str) -> "_Noted":
        """Return a context manager that records API errors of its block instead of raising them."""
        return _Noted(self, what)

    def note(self, what: str, error: Exception) -> None:
        """Record a failure that is to be retried."""
        self.remark(what, str(error))
        self.put_off()

    def remark(self, what: str, why: str) -> None:
        """Record a problem for which a retry does not help."""
        self._now[what] = why

    def put_off(self) -> None:
        """Require another attempt without recording a failure."""
        self._is_done = False

    def end(self) -> str | None:
        """Log what began and what ended; return all failures in one line, or None."""
        for what, error in self._now.items():
            if what not in self._told:
                self._log.warning("trouble.began", trouble=what, error=error)
        for what in self._told - set(self._now):
            self._log.info("trouble.over", trouble=what)
        self._told = set(self._now)
        return "; ".join(f"{what}: {error}" for what, error in self._now.items()) or None


class _Noted:
    def __init__(self, troubles: FailureLog, what: str) -> None:
        self._troubles = troubles
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if isinstance(error, RACED):
            self._troubles.raced = True
        elif isinstance(error, KubeError):
            self._troubles.note(self._what, error)
        else:
            return False
        return True
