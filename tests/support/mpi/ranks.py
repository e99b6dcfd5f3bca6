"""An MPI program whose output shows where its processes ran and that they have communicated."""

import re
from collections import Counter
from collections.abc import Sequence

PROGRAM = """\
import socket
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.Get_rank() + 1)
host = socket.gethostname()
print(f"rank {world.Get_rank()} of {world.Get_size()} on {host}, sum {total}", flush=True)
"""
RANK = re.compile(r"^rank (\d+) of (\d+) on (\S+), sum (\d+)$", re.MULTILINE)

Ranks = tuple[list[int], Counter[str], set[str]]


def ranks(output: str) -> Ranks:
    """The ranks, the number of processes on each host, and what all processes agree on."""
    found = RANK.findall(output)
    places = Counter(host for _, _, host, _ in found)
    agreed = {f"{size} processes, sum {total}" for _, size, _, total in found}
    return sorted(int(rank) for rank, *_ in found), places, agreed


def all_slots(hosts: Sequence[str], slots: int) -> Ranks:
    """The same if all slots of all hosts are in use."""
    size = len(hosts) * slots
    places = Counter(dict.fromkeys(hosts, slots))
    return [*range(size)], places, {f"{size} processes, sum {size * (size + 1) // 2}"}
