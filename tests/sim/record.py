"""``python -m tests.sim.record NAME``: makes the short recording that finds a planted mistake and holds without it.

If there is no recording yet, the worlds of seeds are tried until one finds the mistake. Then every line that is not
needed is removed, and the rest is written to ``tests/sim/recorded/NAME.txt``. A recording must find the mistake under
each of ``SHIFTS``. With ``--seed`` and a NAME that is no mistake: a regression, from a seed that fails now.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext

from tests.sim.planted import MISTAKES, Mistake
from tests.sim.recording import ACTS, FOLDER, PEOPLE, SHIFTS, RecordedWorld, found, of_seed
from tests.sim.themes import THEMES

Lines = list[str]


def finds(lines: Lines, mistake: Mistake) -> bool:
    everywhere = all(found(RecordedWorld(lines, *shift), mistake) for shift in SHIFTS)
    sound = mistake is nullcontext or not any(found(RecordedWorld(lines, *shift), nullcontext) for shift in SHIFTS)
    return everywhere and sound


def first(mistake: Mistake, seeds: Iterable[int], themes: list[str], until: float) -> Lines:
    """The world of the first seed that finds it. Raises LookupError if none does in time."""
    for seed in seeds:
        for theme in themes:
            world = RecordedWorld(of_seed(seed, theme))
            if found(world, mistake) and finds(world.said(), mistake):
                print(f"seed {seed} {theme}: {len(world.lines)} lines", flush=True)
                return world.said()
        if time.monotonic() > until:
            break
    raise LookupError("no seed finds it")


def in_order(lines: Lines) -> Lines:
    """By their times, without the acts of clients that do not come."""
    words = [line.split() for line in lines]
    there = {each[2] for each in words if each[1] in PEOPLE}
    left = [line for line, each in zip(lines, words, strict=True) if each[1] not in ACTS or each[2] in there]
    return sorted(left, key=lambda line: float(line.split()[0]) if line[0].isdigit() else -1.0)


def shrunk(lines: Lines, good: Callable[[Lines], bool], until: float) -> Lines:
    """Without the halves, quarters and finally single lines that are not needed, and with rounder times."""

    def better(other: Lines) -> bool:
        nonlocal lines
        other = in_order(other)
        if other == lines or time.monotonic() > until or not good(other):
            return False
        lines = other
        return True

    size = max(1, len(lines) // 2)
    while size:
        before, at = len(lines), 0
        while at < len(lines):
            if not better(lines[:at] + lines[at + size :]):
                at += size
        print(f"{len(lines)} lines", flush=True)
        if size > 1 or len(lines) == before:
            size //= 2
    for line in list(lines):
        when, _, rest = line.partition(" ")
        others = [each for each in lines if each is not line]
        any(when[0].isdigit() and better([*others, f"{float(when):.{digits}f} {rest}"]) for digits in (0, 1, 2))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.record", description=__doc__)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--seed", type=int, help="of a world that finds it; default: all from 0")
    parser.add_argument("--theme", choices=["", *THEMES], help="of the worlds that are tried; default: each")
    parser.add_argument("--seconds", type=float, default=120.0, help="for the search, and again for making it shorter")
    parser.add_argument("--trace", action="store_true", help="live it with the mistake, and print what happens")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    mistake = MISTAKES[arguments.name] if arguments.seed is None else MISTAKES.get(arguments.name, nullcontext)
    path = FOLDER / f"{arguments.name}.txt"
    if arguments.trace:
        with mistake():
            RecordedWorld(path.read_text().splitlines(), trace=True).live()
        return
    if path.exists():
        lines = path.read_text().splitlines()
    else:
        themes = ["", *THEMES] if arguments.theme is None else [arguments.theme]
        seeds = range(1_000_000) if arguments.seed is None else (arguments.seed,)
        lines = first(mistake, seeds, themes, time.monotonic() + arguments.seconds)
    lines = shrunk(lines, lambda other: finds(other, mistake), time.monotonic() + arguments.seconds)
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
