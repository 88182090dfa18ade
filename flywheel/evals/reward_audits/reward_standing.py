"""The standing of a reward: whether somebody's audit of it is green, and for exactly what.

An audit holds for one version's outputs, in one version of an environment, under one verifier digest. A changed
verifier, prompt, tool or baseline makes it stale, because people judged other outputs or another judge. A reward recipe
that passes what the verifier passes stands as that does; one that judges otherwise is another judge, with audits of its
own: of outputs that it has scored (`run_rescores.submit_recipe`).
"""

from dataclasses import dataclass, field, replace
from urllib.parse import urlencode

from django.db.models import Case, IntegerField, Q, QuerySet, Value, When

from flywheel.agents.models import Version
from flywheel.core import verifiers
from flywheel.core.evidence.reward_audit_rule import REVISION, VERIFIER
from flywheel.core.text.number_words import percent
from flywheel.edge.jobs import State
from flywheel.environments.models import EnvironmentVersion, RewardRecipe, Split, TaskSet
from flywheel.environments.task_sets.leaks import line_of
from flywheel.evals.models import AuditOverride, EvalRun, Rescore, RewardAudit


@dataclass(frozen=True, slots=True)
class Judged:
    """Whose outputs, in which environment, judged by which verifier or recipe."""

    version: Version
    environment_version: EnvironmentVersion
    verifier_digest: str
    task_set: TaskSet | None = field(default=None, compare=False)
    """The set by which it was come upon: an audit holds for every set of the environment's version."""
    recipe: RewardRecipe | None = field(default=None, compare=False)
    """The reward recipe that stands on the verifier."""

    @classmethod
    def now(cls, version: Version, task_set: TaskSet, recipe: RewardRecipe | None = None) -> "Judged":
        """As the set's verifier, or a recipe upon it, would judge the version today: a change of its code counts as
        another verifier."""
        found = task_set.environment_version
        judge = recipe.judged_by(found.verifier) if recipe else verifiers.digest(found.verifier)
        return cls(version, found, judge, task_set, recipe)

    @classmethod
    def of(cls, run: EvalRun) -> "Judged":
        return cls(run.version, run.task_set.environment_version, run.verifier_digest, run.task_set)

    @classmethod
    def of_audit(cls, audit: RewardAudit) -> "Judged":
        return replace(cls.of(audit.run), verifier_digest=audit.verifier_digest, recipe=audit.recipe)

    @property
    def is_by_recipe(self) -> bool:
        """Whether a recipe says what passes, and not the verifier."""
        return self.recipe is not None and not self.recipe.rubric.is_own_verdict

    @property
    def query(self) -> str:
        """The query string of the reward's page."""
        named = {"version": self.version, "task_set": self.task_set, "reward": self.recipe}
        return urlencode({name: str(row) for name, row in named.items() if row})

    @property
    def judge(self) -> str:
        """Who says what passes, for people."""
        return str(self.recipe) if self.is_by_recipe else VERIFIER


@dataclass(frozen=True, slots=True)
class Standing:
    """The standing of a reward now."""

    state: str
    """`green`, `red`, `overridden`, `renewed` (by a small audit), `begun` (not finished), `stale` (green, but for
    something else), `none`"""
    words: str
    audit: RewardAudit | None = None
    override: AuditOverride | None = None
    is_in_pipeline: bool = False
    """Whether it is asked for a later stage of a pipeline, where a small audit is enough."""

    @property
    def allows(self) -> bool:
        """Whether it may be trained on."""
        return self.state in ("green", "overridden") or (self.state == "renewed" and self.is_in_pipeline)


def standing(judged: Judged) -> Standing:
    """The newest word counts: a finished audit, or an override that came after it."""
    done = audits_of(judged).exclude(finished_at=None).order_by("-finished_at").first()
    leave = overrides_of(judged).select_related("created_by").first()
    is_outdated = done is not None and done.is_green and done.result.get("rule") != REVISION
    if done is not None and done.is_green and not is_outdated:
        return Standing("renewed" if done.renews_id else "green", audit_sentence(done), done)
    if leave is not None and (done is None or done.finished_at is None or leave.created_at > done.finished_at):
        return Standing("overridden", f"{leave.created_by} overrides it: {leave.reason}", done, leave)
    if done is not None and not is_outdated:
        return Standing("red", audit_sentence(done), done)
    begun = audits_of(judged).filter(finished_at=None).first()
    if begun is not None:
        left = begun.items.filter(answer="").count()
        return Standing("begun", f"{left} of {begun.items.count()} outputs wait to be judged", begun)
    if done is not None:
        return Standing("stale", f"{done} is green by an older rule. Audit again: what was judged counts", done)
    if other := _green_elsewhere(judged):
        why = _differs(Judged.of_audit(other), judged)
        return Standing("stale", f"{other} is green, but not for this: {why}", other)
    if judged.is_by_recipe:
        return Standing("none", f"the reward recipe {judged.recipe} judges by parts of its own and is not audited yet")
    if judged.verifier_digest != verifiers.digest(judged.environment_version.verifier):
        return Standing("stale", "these outputs were judged by a verifier that has changed since; evaluate again first")
    return Standing("none", "this verifier has not been audited yet")


def audits_of(judged: Judged) -> QuerySet[RewardAudit]:
    """Audits of these versions, newest first."""
    return RewardAudit.objects.filter(
        _is_by(judged), run__version=judged.version, run__task_set__environment_version=judged.environment_version
    ).select_related(
        "run__version__agent",
        "run__task_set__environment_version",
        "rescore__recipe",
        "finished_by",
        "created_by",
    )


def _is_by(judged: Judged) -> Q:
    """Audits of exactly this verifier, or of this recipe upon it: no digest is of both."""
    digest = judged.verifier_digest
    return Q(rescore=None, run__verifier_digest=digest) | Q(rescore__verifier_digest=digest)


def audit_of_verifier(judged: Judged) -> RewardAudit | None:
    """Return the newest audit that bounds the wrong passes of this verifier: of this version's outputs, else of any
    version's."""
    rows = RewardAudit.objects.filter(
        _is_by(judged),
        run__task_set__environment_version=judged.environment_version,
        result__rule=REVISION,
        result__false_passes__n__gt=0,
    )
    is_own = Case(When(run__version=judged.version, then=Value(0)), default=Value(1), output_field=IntegerField())
    return rows.select_related("run__version__agent").order_by(is_own, "-pk").first()


def overrides_of(judged: Judged) -> QuerySet[AuditOverride]:
    return AuditOverride.objects.filter(
        version=judged.version, environment_version=judged.environment_version, verifier_digest=judged.verifier_digest
    )


def renewable(judged: Judged) -> RewardAudit | None:
    """Return the green audit that a small one can renew for these outputs: of a version that this one was trained from,
    in the same environment, under the same verifier. None also where these outputs have an audit of their own."""
    before = line_of(judged.version)[1:]
    if not before or audits_of(judged).filter(renews=None).exclude(finished_at=None).exists():
        return None
    rows = RewardAudit.objects.filter(
        _is_by(judged),
        run__version__in=before,
        run__task_set__environment_version=judged.environment_version,
        renews=None,
        is_green=True,
        result__rule=REVISION,
    )
    return rows.select_related("run__version__agent").order_by("-pk").first()


def runs_of(judged: Judged) -> QuerySet[EvalRun]:
    """Finished evals on train tasks whose outputs could be audited, newest first; by a recipe, once it has scored
    them."""
    verifier = judged.environment_version.verifier
    return EvalRun.objects.filter(
        version=judged.version,
        task_set__environment_version=judged.environment_version,
        verifier_digest=verifiers.digest(verifier) if judged.is_by_recipe else judged.verifier_digest,
        split=Split.TRAIN,
        state=State.SUCCEEDED,
    ).select_related("version__agent", "task_set")


def scores_of(judged: Judged) -> QuerySet[Rescore]:
    """The recipe's scores of these outputs, newest first; none where the verifier judges."""
    return Rescore.objects.filter(
        run__in=runs_of(judged), recipe=judged.recipe, verifier_digest=judged.verifier_digest
    ).order_by("-pk")


def audit_sentence(audit: RewardAudit) -> str:
    """A finished audit in a sentence."""
    found = audit.result
    if not audit.is_green:
        return f"{audit} is not green: {'; '.join(found['faults'])}"
    agreement = found["agreement"]
    bound = found["false_passes"]["high"]
    return (
        f"reviewers agree with {audit.recipe or VERIFIER} on {percent(agreement['mean'])} of {agreement['n']} outputs "
        f"({percent(agreement['low'])} to {percent(agreement['high'])}), and at most {percent(bound)} of its passes "
        "are wrong"
    )


def _green_elsewhere(judged: Judged) -> RewardAudit | None:
    """The newest green audit in the same environment, of the same agent: of a verifier, or of this recipe."""
    own = Q(rescore__recipe__name=judged.judge.partition("@")[0]) if judged.is_by_recipe else Q(rescore=None)
    return (
        RewardAudit.objects.filter(
            own,
            run__version__agent=judged.version.agent_id,
            run__task_set__environment_version__environment=judged.environment_version.environment_id,
            is_green=True,
        )
        .select_related("run__version__agent", "run__task_set__environment_version", "rescore__recipe")
        .first()
    )


def _differs(old: Judged, new: Judged) -> str:
    changed = []
    if old.version != new.version:
        changed.append(f"the outputs were {old.version}'s")
    if old.environment_version != new.environment_version:
        changed.append(f"the environment is {new.environment_version} now, and was {old.environment_version}")
    if old.recipe is not None and old.recipe != new.recipe:
        changed.append(f"the recipe was {old.recipe}")
    elif old.verifier_digest != new.verifier_digest:
        changed.append("the verifier has changed")
    return ", ".join(changed)
