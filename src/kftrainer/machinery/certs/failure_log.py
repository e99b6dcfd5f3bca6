"""What goes wrong again and again: told once when it begins, and once when it is over."""

from types import TracebackType

import structlog

from kftrainer.kube.client.errors import AlreadyExistsError, ConflictError, KubeError, NotFoundError

# What was read has changed, come or gone since.
RACED = (ConflictError, AlreadyExistsError, NotFoundError)

log = structlog.get_logger(__name__)


class FailureLog:
    """The troubles of something that is done over and over, from `begin` to `end` each time."""

    def __init__(self, of: str) -> None:
        self._log = log.bind(of=of)
        self._told: set[str] = set()
        self._now: dict[str, str] = {}
        self._is_done = True
        self.raced = False  # somebody else was faster, which is no trouble

    @property
    def are_none(self) -> bool:
        """Whether nothing is left to be tried again."""
        return self._is_done and not self.raced

    def begin(self) -> None:
        """It is tried again."""
        self._now, self._is_done, self.raced = {}, True, False

    def noted(self, what: str) -> "_Noted":
        """Leave the block without a word if the server does not let it do what it should."""
        return _Noted(self, what)

    def note(self, what: str, error: Exception) -> None:
        """This went wrong."""
        self.remark(what, str(error))
        self.put_off()

    def remark(self, what: str, why: str) -> None:
        """This is not as it should be, and there is nothing to be done about it."""
        self._now[what] = why

    def put_off(self) -> None:
        """There is something left to be tried again, and nobody has to be told."""
        self._is_done = False

    def end(self) -> str | None:
        """Tell what is new; all that went wrong in one line, or None."""
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
