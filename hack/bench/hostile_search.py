"""A search for attacks that cost much: a population that is crossed and mutated."""

import time
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from random import Random

from bench.hostile_objects import CHOICES, IN_JOB, IN_RUNTIME, Attack, within_limits

POPULATION = 16
MEASURED_AGAIN = 5
AT_LEAST_ONE = ("jobs", "containers", "nodes", "targets")
NAMES = tuple(field.name for field in fields(Attack))

Measure = Callable[[Attack, int], float]  # seconds that an attack costs, in the best of some rounds
Population = list[tuple[float, Attack]]


def searched(
    measure: Measure, known: Iterable[Attack], rng: Random, seconds: float
) -> tuple[Attack, int]:
    """Return the worst attack that was found in this time, and how many were tried."""
    until = time.process_time() + seconds
    population = [(measure(attack, 1), attack) for attack in map(within_limits, known)]
    seen = {attack for _, attack in population}
    while time.process_time() < until:
        population = sorted(population, key=_cost)[-POPULATION:]
        child = _fitted(_child(population, rng), rng)
        if child in seen:
            continue
        seen.add(child)
        cost = measure(child, 1)
        if cost > population[0][0]:
            cost = min(cost, measure(child, 2))  # a busy machine is not an attack
            population.append((cost, child))
    selected = sorted(population, key=_cost)[-MEASURED_AGAIN:]
    return max(selected, key=lambda each: measure(each[1], 5))[1], len(seen)


def _cost(one: tuple[float, Attack]) -> float:
    return one[0]


def _child(population: Population, rng: Random) -> Attack:
    """Return a new attack, made of one or two known ones or of nothing."""
    kind = rng.random()
    if kind < 0.05:  # noqa: PLR2004
        return _mutated(Attack(), rng, len(NAMES) // 2)
    # Of three the worst: all can have children, and the worst have more.
    parent = max(rng.choices(population, k=3), key=_cost)[1]
    if kind < 0.35:  # noqa: PLR2004
        other = rng.choice(population)[1]
        taken = {name: getattr(other, name) for name in NAMES if rng.random() < 0.5}  # noqa: PLR2004
        parent = replace(parent, **taken)
    return _mutated(parent, rng, rng.choice((1, 1, 2, 3, 5, 10)))


def _mutated(attack: Attack, rng: Random, number: int) -> Attack:
    """Change some of its numbers."""
    changes = {
        name: _changed(name, getattr(attack, name), rng) for name in rng.sample(NAMES, number)
    }
    changed = replace(attack, **changes)
    least = {name: max(1, getattr(changed, name)) for name in AT_LEAST_ONE}
    return replace(changed, **least)


def _changed(name: str, now: int, rng: Random) -> int:
    if name in CHOICES:
        return rng.randrange(CHOICES[name])
    small, large = rng.randrange(10), int(10 ** rng.uniform(0.0, 3.0))
    near = now + rng.randrange(-3, 4)
    return max(0, rng.choice((0, 1, now // 4, now // 2, near, now * 2, now * 4, small, large)))


def _fitted(attack: Attack, rng: Random) -> Attack:
    """Return an attack within the limits: all numbers are made smaller, or only some of them."""
    if rng.random() < 0.3:  # noqa: PLR2004
        return within_limits(attack)
    some = [name for name in (*IN_RUNTIME, *IN_JOB) if rng.random() < 0.4]  # noqa: PLR2004
    return within_limits(attack, some)
