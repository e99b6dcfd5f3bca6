import socket
from pathlib import Path

import pytest

from kftrainer.devcluster.errors import PortTakenError
from kftrainer.devcluster.processes.ports import FIRST, LAST, LOOPBACK, PortReservations, is_free


def test_two_control_planes_never_choose_the_same_port(tmp_path: Path) -> None:
    first, second = PortReservations(tmp_path), PortReservations(tmp_path)
    chosen = [holder.reserve() for _ in range(20) for holder in (first, second)]
    assert len(set(chosen)) == len(chosen)
    assert all(FIRST <= port <= LAST for port in chosen)
    first.release_all()
    second.release_all()


def test_port_in_use_is_rejected_with_advice(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_free(port)
        with pytest.raises(PortTakenError, match=rf"Port {port} on 127.0.0.1 is in use by another"):
            PortReservations(tmp_path).claim(port)


def test_a_port_that_another_control_plane_claimed_is_refused(tmp_path: Path) -> None:
    first = PortReservations(tmp_path)
    port = first.reserve()
    with pytest.raises(PortTakenError):
        PortReservations(tmp_path).claim(port)
    first.release_all()
    second = PortReservations(tmp_path)
    assert second.claim(port) == port
    second.release_all()
