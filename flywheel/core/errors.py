"""The shape of errors about what somebody gave."""


class FieldError(ValueError):
    """What was given cannot be used: `field` says where, `problem` what would be right."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem
