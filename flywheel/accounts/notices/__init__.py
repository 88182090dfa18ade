"""Notices: people are told of what waits for them, in their inbox and wherever else they want to be told.

    notify(project=run.project, event=NoticeEvent.RUN_FAILED, subject=f"run {run.pk}", title="Run 12 failed", url=…)

Any room may write one, in the transaction of the change that it tells of. Nothing is sent before that is committed.
"""

from flywheel.accounts.notices.notice_writer import notify

__all__ = ["notify"]
