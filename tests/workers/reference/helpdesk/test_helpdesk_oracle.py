from collections import Counter

from flywheel.core.detectors.standard_buckets import BUCKETS
from flywheel.core.traces import corrections
from tests.workers.reference.helpdesk.desk_talks import talk
from workers.reference.helpdesk.helpdesk_customers import customers
from workers.reference.helpdesk.helpdesk_oracle import judge
from workers.reference.helpdesk.helpdesk_shop import TOOLS

FOUND = [(customer, fault) for customer in customers(range(300)) if (fault := judge(customer, talk(customer)))]


def test_customers_are_always_the_same_and_no_two_write_alike() -> None:
    assert customers(range(40)) == customers(range(40))
    assert len({customer.says for customer in customers(range(400))}) == 400


def test_faults_are_of_many_kinds_and_their_corrections_of_every_form_but_plain_words() -> None:
    buckets = Counter(fault.bucket for _, fault in FOUND)
    assert len(buckets) >= 6
    assert set(buckets) <= set(BUCKETS)
    forms = {corrections.form_of(fault.corrected) for _, fault in FOUND}
    assert forms == {"tool", "calls", "text", "ask", "avoid"}


def test_every_correction_fits_the_tools_and_changes_something() -> None:
    for customer, fault in FOUND:
        assert corrections.problems(fault.corrected, TOOLS) == []
        assert not corrections.changes_nothing(fault.corrected, talk(customer)[fault.place])
