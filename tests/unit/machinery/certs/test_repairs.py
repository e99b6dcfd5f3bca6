"""What somebody else keeps undoing is repaired less and less often."""

from kftrainer.machinery.certs.repairs import CONTESTED_AFTER, LONGEST_WAIT, SHORTEST_QUIET, Repairs


def fight(repairs: Repairs, what: str, until: float, *, undone_after: float = 0.0) -> list[float]:
    """When it is repaired, if somebody undoes it each time."""
    now, times = 0.0, []
    while now < until:
        if repairs.is_due(what, now):
            repairs.made(what, now)
            times.append(now)
            now += undone_after
        now += 0.1
    return times


def test_the_first_repairs_come_soon_and_later_ones_seldom() -> None:
    times = fight(Repairs(), "it", until=7200)
    assert times[0] == 0
    assert times[3] < 1
    assert len([each for each in times if each < 60]) < 12
    assert LONGEST_WAIT <= times[-1] - times[-2] < LONGEST_WAIT + 1


def test_one_does_not_wait_for_the_other() -> None:
    repairs = Repairs()
    fight(repairs, "it", until=60)
    assert not repairs.is_due("it", 60)
    assert repairs.is_due("another", 60)


def test_who_undoes_it_seldom_is_not_waited_for() -> None:
    times = fight(Repairs(), "it", until=3600, undone_after=2 * SHORTEST_QUIET)
    assert len(times) == 30


def test_who_undoes_it_often_is() -> None:
    times = fight(Repairs(), "it", until=3600, undone_after=SHORTEST_QUIET / 10)
    assert len(times) < 30


def test_it_is_contested_until_it_has_been_quiet() -> None:
    repairs = Repairs()
    for number in range(CONTESTED_AFTER):
        assert list(repairs.contested(number)) == []
        assert repairs.changes_in(number) is None
        repairs.made("it", number)
    ((what, why),) = repairs.contested(CONTESTED_AFTER)
    assert (what, why) == ("it", "repaired 5 times, the next time after 2 s")
    quiet = CONTESTED_AFTER - 1 + SHORTEST_QUIET
    assert repairs.changes_in(CONTESTED_AFTER) == quiet - CONTESTED_AFTER
    assert list(repairs.contested(quiet)) == []
    assert repairs.changes_in(quiet) is None
    repairs.made("it", quiet)
    assert repairs.is_due("it", quiet + 0.1), "it begins anew"
