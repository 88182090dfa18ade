"""Every test here needs a machine with all layers of the sandbox."""

import pytest

from tests.workers.conftest import sandbox

__all__ = ["sandbox"]


@pytest.fixture(autouse=True, scope="module")
def _needs_all_layers(sandbox: None) -> None: ...
