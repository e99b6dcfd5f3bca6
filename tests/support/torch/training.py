"""A training program, and what it has printed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Each rank starts with other weights and has other data, so the ranks agree on the weights only if
# they average their gradients. A line is one write: the ranks of a node share their output.
PROGRAM = """\
import hashlib, os, socket
from datetime import timedelta
import torch
from torch import distributed, nn

distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
rank = distributed.get_rank()
torch.manual_seed(rank)
inputs = torch.randn(256, 2)
wanted = inputs @ torch.tensor([[2.0], [-3.0]]) + 1.0
model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(int(os.environ.get("STEPS", "100"))):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), wanted)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step == 1:
        print(f"rank {rank} is training", flush=True)
values = [value for part in model.parameters() for value in part.flatten().tolist()]
digest = hashlib.sha256(repr(values).encode()).hexdigest()[:12]
print(f"rank {rank} of {distributed.get_world_size()} on {socket.gethostname()}: "
      f"loss {losses[0]:.6f} to {losses[-1]:.6f}, "
      f"weights {' '.join(f'{value:.2f}' for value in values)} ({digest})", flush=True)
distributed.destroy_process_group()
"""
COMMAND = ("torchrun", "--no-python", "python", "-c", PROGRAM)
LEARNED = "2.00 -3.00 1.00"
RESULT = re.compile(
    r"^rank (\d+) of (\d+) on (\S+): loss (\S+) to (\S+), weights (.+) \((\w+)\)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What all ranks have learned."""

    hosts: Mapping[int, str]  # by rank
    world_sizes: frozenset[int]
    losses: Sequence[tuple[float, float]]  # first and last, of each rank
    weights: frozenset[str]
    digests: frozenset[str]  # of the weights with all digits


def outcome(printed: str) -> Outcome:
    """Read the output of all ranks."""
    rows = RESULT.findall(printed)
    return Outcome(
        {int(rank): host for rank, _, host, *_ in rows},
        frozenset(int(size) for _, size, *_ in rows),
        [(float(first), float(last)) for _, _, _, first, last, *_ in rows],
        frozenset(weights for *_, weights, _ in rows),
        frozenset(digest for *_, digest in rows),
    )
