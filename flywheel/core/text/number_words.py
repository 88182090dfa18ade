"""Numbers in running text, as every verdict says them."""


def n_tasks(count: int) -> str:
    return f"{count} task{'' if count == 1 else 's'}"


def signed(number: float) -> str:
    """To one place, with its sign; zero has none."""
    text = f"{number:+.1f}".replace("-", "\N{MINUS SIGN}")
    return text if text[1:] != "0.0" else "0.0"


def percent(share: float, digits: int = 0) -> str:
    """A share as pages write it everywhere, `64%`."""
    return f"{100 * share:.{digits}f}%"


def points(share: float) -> str:
    return f"{signed(100 * share)} points"
