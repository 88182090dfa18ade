"""The shape of errors about what somebody gave."""


class FieldError(ValueError):
    """An input that cannot be used: `field` says where (empty: as a whole), `problem` what would be right."""

    def __init__(self, problem: str, *, field: str = "") -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field = field
        self.problem = problem
