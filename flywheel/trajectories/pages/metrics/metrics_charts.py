"""The figures of production as charts: each point leads to the list of what it counts."""

from collections.abc import Callable, Mapping
from datetime import date
from typing import Any
from urllib.parse import urlencode

from flywheel.core.detectors.standard_buckets import Bucket, name_of
from flywheel.core.evidence.statistics.estimates import Estimate
from flywheel.trajectories.metrics.production_metrics import Figures, Metrics, by_of
from flywheel.trajectories.search import grammar

Where = tuple[grammar.Node, ...]
DRAWN = 6
"""Versions, tools or environments that are drawn, the most used."""


def term(name: str, value: str) -> grammar.Term:
    return grammar.Term(name, (grammar.Value(value),))


SCORED: Where = (term("has", "outcome"),)
INTERVENED: Where = (term("has", "intervention"),)
COSTED: Where = (term("has", "cost"),)
FAILED: Where = (grammar.Not(term("bucket", "none")), grammar.Not(term("label", "pass")))


def address(index: str, q: str) -> str:
    """The list of trajectories with this filter."""
    return f"{index}?{urlencode({'q': q})}"


def charts_of(found: Metrics, index: str, known: Mapping[str, Bucket]) -> list[dict[str, Any]]:
    """Return the charts to draw; `index` is the address of the list."""
    drawing = _Drawing(found, index)
    whole = not found.request.by
    return [
        drawing.rates("success", "Success", lambda these: these.success, SCORED, "of those with an outcome"),
        drawing.buckets(known) if whole else drawing.rates("failures", "Failures", lambda f: f.failure, FAILED, KNOWN),
        drawing.rates("interventions", "Interventions", lambda these: these.intervention, INTERVENED, "of all"),
        drawing.latency(),
        drawing.lines("cost", "Cost", "dollars", lambda these: these.cost, COSTED, "of those whose cost is known"),
        drawing.tokens() if whole else drawing.lines("tokens", "Tokens", "tokens", _tokens, (), "in and out"),
    ]


KNOWN = "confirmed, or proposed and waiting"


def _tokens(these: Figures) -> float | None:
    known = [count for count in (these.tokens_in, these.tokens_out) if count is not None]
    return sum(known) if known else None


class _Drawing:
    def __init__(self, found: Metrics, index: str) -> None:
        self.found, self.index = found, index
        self.starts = list(found.times)
        self.days = [start.isoformat() for start in self.starts]
        self.lined: list[tuple[str, Where, Mapping[date, Figures]]] = (
            [(group.name, group.terms, group.times) for group in found.groups[:DRAWN]]
            if found.request.by
            else [("", (), found.times)]
        )

    def rates(
        self, key: str, title: str, rate: Callable[[Figures], Estimate], terms: Where, note: str
    ) -> dict[str, Any]:
        """A share with its interval, a line for each group."""
        series = []
        for name, own, times in self.lined:
            found = [rate(times.get(start, Figures())) for start in self.starts]
            line = self.line(name or title.lower(), [_percent(each.mean) for each in found], self.links((*own, *terms)))
            series.append(line | {end: [_percent(getattr(each, end)) for each in found] for end in ("low", "high")})
        return self.spec(key, title, {"title": "share", "unit": "%"}, series, f"{note}; 95% interval")

    def lines(
        self, key: str, title: str, unit: str, value: Callable[[Figures], float | None], terms: Where, note: str
    ) -> dict[str, Any]:
        series = [
            self.line(
                name or title.lower(),
                [value(times.get(start, Figures())) for start in self.starts],
                self.links((*own, *terms)),
            )
            for name, own, times in self.lined
        ]
        return self.spec(key, title, {"title": unit}, series, note) | ({} if self.found.request.by else {"kind": "bar"})

    def latency(self) -> dict[str, Any]:
        """The half and the slowest twentieth; of several groups, the slowest twentieth alone."""
        parts = ["p95"] if self.found.request.by else ["p50", "p95"]
        series = []
        for name, own, times in self.lined:
            for part in parts:
                values = [getattr(times.get(start, Figures()), part) for start in self.starts]
                seconds = [None if value is None else value / 1000 for value in values]
                links = [
                    self.link((*own, *_slower(value if part == "p95" else None)), start)
                    for start, value in zip(self.starts, values, strict=True)
                ]
                series.append(self.line(name or part, seconds, links))
        note = "a point of p95 opens what was slower"
        title = "Latency p95" if self.found.request.by else "Latency"
        return self.spec("latency", title, {"title": "time", "unit": "s"}, series, note)

    def tokens(self) -> dict[str, Any]:
        series = [
            self.line(name, [getattr(self.found.times[start], column) for start in self.starts], self.links(()))
            for name, column in (("in", "tokens_in"), ("out", "tokens_out"))
        ]
        note = "of those whose tokens are known"
        return self.spec("tokens", "Tokens", {"title": "tokens"}, series, note) | {"kind": "bar", "stack": True}

    def buckets(self, known: Mapping[str, Bucket]) -> dict[str, Any]:
        series = [
            self.line(
                name_of(bucket.key, known),
                [bucket.times.get(start, Figures()).count for start in self.starts],
                self.links(bucket.terms),
            )
            for bucket in self.found.buckets[:DRAWN]
        ]
        spec = self.spec("failures", "Failures by category", {"title": "trajectories"}, series, KNOWN)
        return spec | {"kind": "bar", "stack": True}

    def spec(self, key: str, title: str, y: dict[str, str], series: list[dict[str, Any]], note: str) -> dict[str, Any]:
        by, every = by_of(self.found.request.by), self.found.request.every
        return {
            "kind": "line",
            "key": f"metrics-{key}-{self.found.request.by}",
            "title": f"{title} by {every}" + (f" and {by.label}" if by else ""),
            "x": {"title": f"{every}, UTC"},
            "y": y,
            "height": "short",
            "series": series,
            "note": note,
        }

    def line(self, name: str, y: list[Any], links: list[str]) -> dict[str, Any]:
        return {"name": name, "role": "plain", "x": self.days, "y": y, "links": links}

    def links(self, terms: Where) -> list[str]:
        return [self.link(terms, start) for start in self.starts]

    def link(self, terms: Where, start: date) -> str:
        return address(self.index, self.found.request.where(*terms, start=start))


def _slower(milliseconds: float | None) -> Where:
    return () if milliseconds is None else (term("latency", f">={milliseconds:.3f}ms"),)


def _percent(share: float | None) -> float | None:
    return None if share is None else round(share * 100, 2)
