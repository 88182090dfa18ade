"""Runs Python that nobody vouches for: verifiers that people write in the browser, programs that a model wrote.

`host.run(code, function=…, arguments=…)` calls one function of that code in a process that sees no file, no network, no
other process and no environment variable, within limits on time, memory and output, and returns an `Outcome`.
`verdict.score(code, trace, target)` reads that as a verdict: a finite number in the declared range, or unscored with
its cause; never 0 by default. `report.report()` tries each layer for real and says what this machine offers. A layer
that cannot be had means `refused`.

Map: `outcome` (words), `layers` and `seccomp` (what the kernel is asked for), `keeper` (the process that forks, and the
one that watches), `guest` (the process that runs the code), `host` (our side of the wire), `verdict`, `report`.
Why it is built like this, what each layer stops and what remains: docs/design/sandbox.md.

Nothing but Python's standard library is imported here, and nothing heavy at this door: the keeper passes through it.
"""
