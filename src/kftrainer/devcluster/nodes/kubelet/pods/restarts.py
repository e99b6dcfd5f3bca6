"""Whether and when a container is restarted. Pure."""

from dataclasses import dataclass, replace

from kftrainer.devcluster.nodes.kubelet.pods.states import Object, Role

BASE, LONGEST = 10.0, 300.0  # seconds
RESET_AFTER = 600.0  # seconds that a container must run so that earlier failures do not count
EXPONENTS = 10


def is_restarted(pod: Object, container: Object, role: Role, code: int) -> bool:
    """Return whether a container that ended with this exit code is started again."""
    if any(_applies(rule, code) for rule in container.get("restartPolicyRules") or ()):
        return True
    policy = container.get("restartPolicy") or pod["spec"].get("restartPolicy", "Always")
    match role:
        case Role.SIDECAR:
            return True
        case Role.INIT:
            return code != 0 and policy != "Never"
        case Role.MAIN:
            return policy == "Always" or (policy == "OnFailure" and code != 0)


def _applies(rule: Object, code: int) -> bool:
    if rule.get("action") != "Restart":
        return False
    codes = rule.get("exitCodes") or {}
    listed = code in (codes.get("values") or ())
    return listed if codes.get("operator") == "In" else not listed


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay before a restart: none first, then doubled with each failure."""

    base: float = BASE
    failures: int = 0

    @property
    def delay(self) -> float:
        """Seconds before the next start."""
        if self.failures <= 1:
            return 0.0
        return float(min(LONGEST, self.base * 2 ** min(self.failures - 2, EXPONENTS)))

    def after_run(self, seconds: float) -> "Backoff":
        """Return the backoff after the container ran for this time and ended."""
        return replace(self, failures=1 if seconds >= RESET_AFTER else self.failures + 1)


def go_duration(seconds: float) -> str:
    """Return a duration as Go prints it, such as `2m40s`."""
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f}m{rest:g}s" if minutes else f"{rest:g}s"
