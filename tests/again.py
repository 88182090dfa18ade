"""Names the tests that failed first and pass now, for `make test-again`: each is a defect, and there should be none."""

from _pytest.terminal import TerminalReporter


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    failed = {report.nodeid for kind in ("failed", "error") for report in terminalreporter.getreports(kind)}
    passed = {report.nodeid for report in terminalreporter.getreports("passed")}
    if flaky := sorted(passed - failed):
        terminalreporter.section("failed first and passed now: a defect each, and the aim is none")
        for name in flaky:
            terminalreporter.line(f"FLAKY: {name}")
