"""What programs draw and how long they take on each class of nodes, at each frequency: predictions from
one measurement, and which frequency and class are best.

The model is that of EAR's learning phase (Bell and others), as M. D'Amico uses it for several classes
of nodes (PhD thesis, UPC, 2021, chapter 6). Six coefficients for each pair of frequencies carry what
was measured at one frequency f0 to another one f:

    P(f) = A P(f0) + B TPI(f0) + C              watts of a node
    CPI(f) = D CPI(f0) + E TPI(f0) + F          cycles for an instruction
    T(f) = T(f0) CPI(f) / CPI(f0) f0 / f        seconds
    E(f) = P(f) T(f)                            joules of a node

TPI are the memory transactions for an instruction, times 1000 where the coefficients were learnt so.
Frequencies are in GHz.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple
from collections.abc import Iterator, Mapping, Sequence

from vrm.model.job import application_kind


class Coefficients(NamedTuple):
    """From one frequency to another: `a`, `b`, `c` for the power, `d`, `e`, `f` for the cycles."""

    a: float
    b: float
    c: float
    d: float
    e: float
    f: float


class Measured(NamedTuple):
    """A program on one node of a class, all of whose cores it used: seconds, mean watts, cycles and
    memory transactions for an instruction (0: not known) at a frequency (0: the class's highest)."""

    seconds: float
    watts: float
    cpi: float = 0.0
    tpi: float = 0.0
    frequency: float = 0.0


class Prediction(NamedTuple):
    """A program on one node at a frequency (0: whatever the node chooses)."""

    frequency: float
    watts: float
    seconds: float
    cpi: float = 0.0

    @property
    def joules(self) -> float:
        """The energy of the node."""
        return self.watts * self.seconds


@dataclass(frozen=True)
class PowerClass:
    """What is known of the power of nodes that are alike.

    `idle` are the watts of a node without a job, `busy` those of one with all cores in use by a program
    of which nothing is known (0: not known). `frequencies`, ascending, are those that may be chosen;
    `coefficients` are by pairs of them, from and to.
    """

    name: str
    idle: float = 0.0
    busy: float = 0.0
    frequencies: tuple[float, ...] = ()
    coefficients: Mapping[tuple[float, float], Coefficients] = field(default_factory=dict,
                                                                    compare=False, repr=False)

    @property
    def highest(self) -> float:
        """The highest frequency; 0 where none is known."""
        return self.frequencies[-1] if self.frequencies else 0.0

    def predictions(self, measured: Measured) -> list[Prediction]:
        """What a program that was measured is at each frequency, ascending; without coefficients, or
        without the cycles of the program, at the one of the measurement alone."""
        origin = measured.frequency or self.highest
        found = []
        for frequency in self.frequencies:
            known = self.coefficients.get((origin, frequency))
            if known is not None and measured.cpi > 0:
                found.append(predicted(measured, origin, frequency, known))
        return found or [Prediction(origin, measured.watts, measured.seconds, measured.cpi)]


def predicted(measured: Measured, origin: float, frequency: float, known: Coefficients) -> Prediction:
    """What a measurement at the frequency `origin` is at another one."""
    watts = known.a * measured.watts + known.b * measured.tpi + known.c
    cpi = known.d * measured.cpi + known.e * measured.tpi + known.f
    seconds = measured.seconds * cpi / measured.cpi * origin / frequency
    return Prediction(frequency, watts, seconds, cpi)


# ---------------------------------------------------------------------------------- the objective


BALANCED, RUNTIME, ENERGY, HIGHEST = "balanced", "runtime", "energy", "highest"
"""What a frequency is chosen for: least distance from the least energy and the least time, least time,
least energy, or the highest one."""


def distance(energy: float, time: float, weight: float) -> float:
    """How far a choice is from the best of each: `energy` and `time` are shares of the least, `weight`
    says how much more the time counts. No unit; the best that can be is sqrt(1 + weight)."""
    return math.sqrt(energy * energy + weight * time * time)


def chosen(predictions: Sequence[Prediction], goal: str, weight: float = 1.0) -> Prediction:
    """The prediction with the best frequency; of equal ones the one with the lowest frequency."""
    if goal == HIGHEST:
        return predictions[-1]
    if goal == RUNTIME:
        return min(predictions, key=lambda each: each.seconds)
    if goal == ENERGY:
        return min(predictions, key=lambda each: each.joules)
    joules = min(each.joules for each in predictions)
    seconds = min(each.seconds for each in predictions)
    return min(predictions, key=lambda each: distance(each.joules / joules, each.seconds / seconds,
                                                      weight))


class ClassOffer(NamedTuple):
    """A class of nodes for a program, at the frequency chosen there. `score` is its distance from the
    best that any class offers; `pace` the run time there, as a multiple of that on the program's
    first class at its highest frequency."""

    name: str
    prediction: Prediction
    score: float
    pace: float


class Programs:
    """What was measured of programs, by their names and the classes of nodes. The first class of a
    program is the one that its requested run times are about."""

    def __init__(self, measured: Mapping[str, Mapping[str, Measured]] | None = None) -> None:
        self._measured = {app: dict(classes) for app, classes in (measured or {}).items()}
        self._offers: dict[tuple[object, ...], tuple[ClassOffer, ...]] = {}
        self._at: dict[tuple[object, ...], Prediction | None] = {}

    def __bool__(self) -> bool:
        return bool(self._measured)

    def __iter__(self) -> Iterator[str]:
        return iter(self._measured)

    @property
    def classes(self) -> frozenset[str]:
        """The classes on which something was measured."""
        return frozenset(name for classes in self._measured.values() for name in classes)

    def of(self, app: str) -> Mapping[str, Measured]:
        """What was measured of a program, by its name or by its name up to the first dot."""
        found = self._measured.get(app)
        return self._measured.get(application_kind(app), {}) if found is None else found

    def time_coefficient(self, app: str, name: str) -> float | None:
        """The run time on a class as a multiple of that on the program's first class; None where one
        of them was not measured."""
        found = self.of(app)
        return found[name].seconds / next(iter(found.values())).seconds if name in found else None

    def offers(self, app: str, classes: Mapping[str, PowerClass], goal: str = BALANCED,
               weight: float = 1.0) -> tuple[ClassOffer, ...]:
        """The classes on which a program was measured, in the order of its measurements, each with the
        frequency that is best there for the goal."""
        key = (app, goal, weight, *classes.items())
        if key not in self._offers:
            self._offers[key] = self._made(app, classes, goal, weight)
        return self._offers[key]

    def _made(self, app: str, classes: Mapping[str, PowerClass], goal: str, weight: float
              ) -> tuple[ClassOffer, ...]:
        found = self.of(app)
        picked = {name: chosen(classes[name].predictions(each), goal, weight)
                  for name, each in found.items() if name in classes}
        if not picked:
            return ()
        joules = min(each.joules for each in picked.values())
        seconds = min(each.seconds for each in picked.values())
        whole = next(iter(found.values())).seconds
        return tuple(ClassOffer(name, each, distance(each.joules / joules, each.seconds / seconds, weight),
                           each.seconds / whole) for name, each in picked.items())

    def at(self, app: str, power: PowerClass, frequency: float) -> Prediction | None:
        """What a program is on a class at a frequency (0: the one that nodes have by themselves, their
        highest); None where that is not known."""
        key = app, power, frequency
        if key not in self._at:
            self._at[key] = self._found(app, power, frequency)
        return self._at[key]

    def _found(self, app: str, power: PowerClass, frequency: float) -> Prediction | None:
        found = self.of(app).get(power.name)
        if found is None:
            return None
        predictions = power.predictions(found)
        if not frequency:
            return predictions[-1]
        return next((each for each in predictions if abs(each.frequency - frequency) < 1e-6), None)

    def pace(self, app: str, power: PowerClass, frequency: float) -> float:
        """The run time of a program on a class at a frequency, as a multiple of that on its first
        class at its highest frequency; 1 where that is not known."""
        there = self.at(app, power, frequency)
        return 1.0 if there is None else there.seconds / next(iter(self.of(app).values())).seconds


NO_PROGRAMS = Programs()
"""Those of a run that knows nothing of power."""
