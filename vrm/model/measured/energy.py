"""Power and run time of programs on each class of nodes, at each frequency: predictions from one measurement, and the
choice of the best frequency and class.

The model is that of EAR's learning phase (Bell and others), as M. D'Amico uses it for several classes of nodes (PhD
thesis, UPC, 2021, chapter 6). Six coefficients for each pair of frequencies convert a measurement at one frequency f0
to another one f:

    P(f) = A P(f0) + B TPI(f0) + C              watts of a node
    CPI(f) = D CPI(f0) + E TPI(f0) + F          cycles per instruction
    T(f) = T(f0) CPI(f) / CPI(f0) f0 / f        seconds
    E(f) = P(f) T(f)                            joules of a node

TPI is the number of memory transactions per instruction, times 1000 if the coefficients were learnt so. Frequencies
are in GHz.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple
from collections.abc import Iterator, Mapping, Sequence

from vrm.model.job import application_kind


class Coefficients(NamedTuple):
    """Coefficients from one frequency to another: `a`, `b`, `c` for the power, `d`, `e`, `f` for the cycles per
    instruction."""

    a: float
    b: float
    c: float
    d: float
    e: float
    f: float


class MeasuredProgram(NamedTuple):
    """Measurement of a program that used all cores of one node of a class: seconds, mean watts, cycles and memory
    transactions per instruction (0: unknown), and the frequency (0: the class's highest)."""

    seconds: float
    watts: float
    cpi: float = 0.0
    tpi: float = 0.0
    frequency: float = 0.0


class Prediction(NamedTuple):
    """Predicted behaviour of a program on one node at a frequency (0: whatever the node chooses)."""

    frequency: float
    watts: float
    seconds: float
    cpi: float = 0.0

    @property
    def joules(self) -> float:
        """The energy that the node uses."""
        return self.watts * self.seconds


@dataclass(frozen=True)
class PowerClass:
    """Power data of a class of equal nodes.

    `idle` is the power (watts) of a node without a job, `busy` that of a node whose cores are all used by a program
    without measurements (0: unknown). `frequencies`, ascending, are those that may be chosen; `coefficients` are by
    pairs of them, from and to.
    """

    name: str
    idle: float = 0.0
    busy: float = 0.0
    frequencies: tuple[float, ...] = ()
    coefficients: Mapping[tuple[float, float], Coefficients] = field(default_factory=dict,
                                                                    compare=False, repr=False)

    @property
    def highest(self) -> float:
        """The highest frequency; 0 if none is known."""
        return self.frequencies[-1] if self.frequencies else 0.0

    def predictions(self, measured: MeasuredProgram) -> list[Prediction]:
        """Predict a measured program at each frequency, ascending; without coefficients, or without the cycles of the
        program, only at the frequency of the measurement."""
        origin = measured.frequency or self.highest
        found = []
        for frequency in self.frequencies:
            known = self.coefficients.get((origin, frequency))
            if known is not None and measured.cpi > 0:
                found.append(predicted(measured, origin, frequency, known))
        return found or [Prediction(origin, measured.watts, measured.seconds, measured.cpi)]


def predicted(measured: MeasuredProgram, origin: float, frequency: float, known: Coefficients) -> Prediction:
    """Convert a measurement at the frequency `origin` to another frequency."""
    watts = known.a * measured.watts + known.b * measured.tpi + known.c
    cpi = known.d * measured.cpi + known.e * measured.tpi + known.f
    seconds = measured.seconds * cpi / measured.cpi * origin / frequency
    return Prediction(frequency, watts, seconds, cpi)


# ---------------------------------------------------------------------------------- the objective


BALANCED, RUNTIME, ENERGY, HIGHEST = "balanced", "runtime", "energy", "highest"
"""Goals for the choice of a frequency: least distance from both the least energy and the least time, least time, least
energy, or the highest frequency."""


def distance(energy: float, time: float, weight: float) -> float:
    """Return how far a choice is from the best of each (no unit). `energy` and `time` are multiples of the least
    energy and time; `weight` is how much more the time counts. The best possible value is sqrt(1 + weight)."""
    return math.sqrt(energy * energy + weight * time * time)


def chosen(predictions: Sequence[Prediction], goal: str, weight: float = 1.0) -> Prediction:
    """Return the prediction with the best frequency for the goal; if several are equal, that with the lowest
    frequency."""
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
    """A class of nodes for a program, at the frequency chosen there. `score` is its distance from the best that any
    class offers, `pace` its run time there as a multiple of that on the program's first class at its highest
    frequency."""

    name: str
    prediction: Prediction
    score: float
    pace: float


class Programs:
    """Measurements of programs, by program name and class of nodes. The requested run times of a program refer to its
    first class."""

    def __init__(self, measured: Mapping[str, Mapping[str, MeasuredProgram]] | None = None) -> None:
        self._measured = {app: dict(classes) for app, classes in (measured or {}).items()}
        self._offers: dict[tuple[object, ...], tuple[ClassOffer, ...]] = {}
        self._at: dict[tuple[object, ...], Prediction | None] = {}

    def __bool__(self) -> bool:
        return bool(self._measured)

    def __iter__(self) -> Iterator[str]:
        return iter(self._measured)

    @property
    def classes(self) -> frozenset[str]:
        """The classes with measurements."""
        return frozenset(name for classes in self._measured.values() for name in classes)

    def of(self, app: str) -> Mapping[str, MeasuredProgram]:
        """Return the measurements of a program by class, found by its name or by its name up to the first dot."""
        found = self._measured.get(app)
        return self._measured.get(application_kind(app), {}) if found is None else found

    def time_coefficient(self, app: str, name: str) -> float | None:
        """Return the run time on a class as a multiple of that on the program's first class; None if the class was not
        measured."""
        found = self.of(app)
        return found[name].seconds / next(iter(found.values())).seconds if name in found else None

    def offers(self, app: str, classes: Mapping[str, PowerClass], goal: str = BALANCED,
               weight: float = 1.0) -> tuple[ClassOffer, ...]:
        """Return the classes on which a program was measured, in the order of its measurements, each with its best
        frequency for the goal."""
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
        """Return the prediction for a program on a class at a frequency (0: the default of nodes, their highest); None
        if it is unknown."""
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
        """Return the run time of a program on a class at a frequency, as a multiple of that on its first class at its
        highest frequency; 1 if it is unknown."""
        there = self.at(app, power, frequency)
        return 1.0 if there is None else there.seconds / next(iter(self.of(app).values())).seconds


NO_PROGRAMS = Programs()
"""The measurements of a run without data about power."""
