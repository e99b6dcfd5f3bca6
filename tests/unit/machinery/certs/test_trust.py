"""For how long clients have been told of an authority."""

from kftrainer.machinery.certs.authority import OVERLAP, SETTLED_AFTER
from kftrainer.machinery.certs.trust import Trust
from tests.support.certificates import authority
from tests.support.fake_clock import START

ONE, OTHER = authority(START), authority(START)


def test_it_counts_from_when_all_bundles_have_it() -> None:
    trust = Trust()
    trust.saw([ONE.pem, b""], [], 0)
    assert trust.told_for(5) == {}
    trust.saw([ONE.pem, OTHER.pem + ONE.pem], [], 10)
    trust.saw([OTHER.pem + ONE.pem, OTHER.pem + ONE.pem], [], 12)
    assert trust.told_for(15) == {ONE.certificate: 5, OTHER.certificate: 3}


def test_it_counts_anew_after_a_bundle_was_lost() -> None:
    trust = Trust()
    trust.saw([ONE.pem], [], 0)
    trust.saw([b""], [], 10)
    trust.saw([ONE.pem], [], 20)
    assert trust.told_for(21) == {ONE.certificate: 1}


def test_with_no_bundles_nobody_has_to_be_told() -> None:
    trust = Trust()
    trust.saw([], [ONE.certificate], 0)
    assert trust.told_for(7) == {ONE.certificate: 7}


def test_it_says_when_to_look_again() -> None:
    trust = Trust()
    assert trust.changes_in(0) is None
    trust.saw([ONE.pem], [], 0)
    assert trust.changes_in(1) == SETTLED_AFTER - 1
    assert trust.changes_in(SETTLED_AFTER) == OVERLAP - SETTLED_AFTER
    assert trust.changes_in(OVERLAP) is None
