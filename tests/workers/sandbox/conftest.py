"""Every test here needs a machine with all layers."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _needs_all_layers(sandbox: None) -> None: ...
