"""The reviewer's guide, the page and the registry name the same keys."""

import re
from pathlib import Path

from flywheel.core.detectors.standard_buckets import BUCKETS
from flywheel.failures.buckets.bucket_definitions import SHORTCUTS
from flywheel.failures.pages.desk.correction_form import FORMS

ROOT = Path(__file__).resolve().parents[3]


def test_the_guide_names_every_key_of_the_queue() -> None:
    guide = (ROOT / "docs/guides/reviewer.md").read_text()
    named = set(re.findall(r"`([^`]+)`", "".join(line for line in guide.splitlines() if line.startswith("| `"))))
    templates = "".join(
        (ROOT / path).read_text()
        for path in (
            "templates/failures/_desk.html",
            "templates/failures/_decision.html",
            "templates/failures/_correction.html",
            "templates/failures/_queue_desk.html",
            "templates/failures/_item_actions.html",
            "templates/environments/_make.html",
        )
    )
    declared = set(re.findall(r'data-key="([^"{]+)"', templates)) | {key for *_, key in FORMS}
    scripted = set(re.findall(r'key: "([^"]+)"', (ROOT / "static/queue.js").read_text()))
    written = {"mod+Enter": "Ctrl+Enter"} | {f"shift+{key}": f"Shift+{key.upper()}" for key in "adsqrw"}
    digits = {bucket.shortcut for bucket in BUCKETS.values()}
    assert {written.get(key, key) for key in declared | scripted} | {"?"} == named - digits
    assert digits == set("1234567890")
    assert not set(SHORTCUTS) & (declared | scripted), "keys of a project's own buckets do nothing else on the page"
