"""The results as a page of Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from benchmarks.speed.engines import MODULES, NARROW, OWN, TITLES
from benchmarks.speed.results import Result, Timing, geometric_mean
from benchmarks.speed.training.rows import TRAINING

NONE = "–"
FIRST = (
    "The first step of a fresh process, from the import of the engine on: cold, and warm with what an earlier process "
    "compiled; the largest resident memory, Python's own included:"
)
HEADS = {"training": "Training step", "inference": "Inference"}


def page(machine: Mapping[str, str], results: Sequence[Result], command: str) -> str:
    """All tables, behind the machine and the command."""
    lines = [
        "# Speed", "", f"By `{command}`.", "",
        "; ".join(f"{key} {value}" for key, value in machine.items()) + ".", "",
        "Medians of engines that take turns in one process, in ms. Ratios are the other's time over Glowtrain's.",
    ]  # fmt: skip
    for part in MODULES:
        if chosen := [result for result in results if result.part == part]:
            lines += ["", f"## {HEADS[part]}", "", *part_lines(chosen)]
    return "\n".join(lines) + "\n"


def part_lines(results: Sequence[Result]) -> Iterator[str]:
    """The tables of one part."""
    engines = engines_of(results)
    yield from times(results, engines[1:])
    if faster := [NARROW[name] for name in engines if NARROW.get(name, OWN) != OWN]:
        yield from ("", "Each in the precision in which it is faster:", "", *faster_precisions(results, faster))
    yield from ("", "Seconds to load, compile and take the first step, in that process:", "")
    yield from readiness(results, engines)
    if any(timing.peak for result in results for timing in result.timings.values()):
        yield from ("", FIRST, "")
        yield from first_steps(results, engines)
    if staged := [result for result in results if result.facts.get("stages")]:
        yield from ("", "Seconds of each stage of compiling:", "", *stages(staged))
    if notes := [*_notes(results)]:
        yield from ("", *notes)


def engines_of(results: Sequence[Result]) -> list[str]:
    """Glowtrain and the peers that were asked for."""
    met = {name for result in results for name in (*result.timings, *result.failures)}
    return [OWN, *(name for name in MODULES[results[0].part] if name in met and name != OWN)]


def times(results: Sequence[Result], peers: Sequence[str]) -> Iterator[str]:
    """A line for each row, and the geometric means of its ratios."""
    heads = [cell for peer in peers for cell in (f"{TITLES[peer]} ms", "ratio")]
    yield from _head("row", "cores", f"{TITLES[OWN]} ms", *heads)
    for result in results:
        cells = [cell for peer in peers for cell in (_ms(result, peer), _number(result.ratio(peer)))]
        yield _line(_titled(result), str(result.cores), _ms(result, OWN), *cells)
    for cores in sorted({result.cores for result in results}):
        same = [result for result in results if result.cores == cores]
        means = (_number(geometric_mean(result.ratio(peer) for result in same)) for peer in peers)
        yield _line("**geometric mean**", str(cores), "", *(cell for mean in means for cell in ("", f"**{mean}**")))


def faster_precisions(results: Sequence[Result], peers: Sequence[str]) -> Iterator[str]:
    """Ratios for each row, and their geometric means."""
    yield from _head("row", "cores", *(f"{peer} / {OWN}" for peer in peers))
    for result in results:
        yield _line(result.row, str(result.cores), *(_number(result.ratio_of_faster(peer)) for peer in peers))
    for cores in sorted({result.cores for result in results}):
        same = [result for result in results if result.cores == cores]
        means = (_number(geometric_mean(result.ratio_of_faster(peer) for result in same)) for peer in peers)
        yield _line("**geometric mean**", str(cores), *(f"**{mean}**" for mean in means))


def readiness(results: Sequence[Result], engines: Sequence[str]) -> Iterator[str]:
    """Load and compile times, with the arena where Glowtrain has one."""
    arenas = any("arena" in result.facts for result in results)
    yield from _head("row", "cores", *(TITLES[name] for name in engines), *(["arena MB", "arena / live"] * arenas))
    for result in results:
        cells = [_of(result, name, lambda timing: f"{timing.ready:.2f}") for name in engines]
        if arenas:
            arena, overhead = result.facts.get("arena"), result.facts.get("overhead")
            cells += [NONE if arena is None else f"{arena / 1e6:.1f}", NONE if overhead is None else f"{overhead:.3f}"]
        yield _line(result.row, str(result.cores), *cells)


def first_steps(results: Sequence[Result], engines: Sequence[str]) -> Iterator[str]:
    """First steps and memory of fresh processes."""
    heads = [f"{TITLES[name]} {what}" for name in engines for what in ("cold s", "warm s", "MB")]
    yield from _head("row", "cores", *heads)
    for result in (result for result in results if any(timing.peak for timing in result.timings.values())):
        cells = [cell for name in engines for cell in _first(result.timings.get(name))]
        yield _line(result.row, str(result.cores), *cells)


def stages(results: Sequence[Result]) -> Iterator[str]:
    """Seconds of each stage."""
    names = list(results[0].facts["stages"])
    yield from _head("row", "cores", *names)
    for result in results:
        yield _line(result.row, str(result.cores), *(f"{result.facts['stages'][name]:.2f}" for name in names))


def _notes(results: Iterable[Result]) -> Iterator[str]:
    for result in results:
        for name in result.disagreeing:
            apart = result.timings[name].apart
            yield f"- {result.place}: {TITLES[name]}'s first result is {apart:.1e} off."
        for name, reason in result.failures.items():
            yield f"- {result.place}: {TITLES.get(name, name)} did not run: {reason}"


def _titled(result: Result) -> str:
    """The row's name, with what it trains."""
    if result.part != "training":
        return result.row
    row = TRAINING[result.row]
    return f"{result.row}: {row.about}; batch {row.batch}"


def _first(timing: Timing | None) -> tuple[str, str, str]:
    if timing is None or timing.peak is None:
        return NONE, NONE, NONE
    return _number(timing.cold), _number(timing.warm), f"{timing.peak / 1e6:.0f}"


def _of(result: Result, engine: str, text: Callable[[Timing], str]) -> str:
    timing = result.timings.get(engine)
    return NONE if timing is None else text(timing)


def _ms(result: Result, engine: str) -> str:
    return _of(result, engine, lambda timing: f"{timing.ms:.3g}" if timing.ms < 100 else f"{timing.ms:.0f}")


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _head(*cells: str) -> tuple[str, str]:
    return _line(*cells), "|---" * len(cells) + "|"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
