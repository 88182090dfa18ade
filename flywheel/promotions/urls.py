from django.urls import URLPattern, URLResolver, path

from flywheel.promotions.pages import lineage, promotions, suites
from flywheel.promotions.pages.ramp_pages import ramps, shadows
from flywheel.promotions.pages.wheel import turns

app_name = "promotions"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", promotions.index, name="index"),
    path("propose/", promotions.propose, name="propose"),
    path("policy/", promotions.policy, name="policy"),
    path("candidates/<int:pk>/", promotions.candidate, name="candidate"),
    path("candidates/<int:pk>/approve/", promotions.approve, name="approve"),
    path("candidates/<int:pk>/plan/", promotions.plan, name="plan"),
    path("candidates/<int:pk>/reject/", promotions.decline, name="reject"),
    path("candidates/<int:pk>/harmless/", promotions.harmless, name="harmless"),
    path("candidates/<int:pk>/sealed/", promotions.final, name="final"),
    path("candidates/<int:pk>/sealed/open/", promotions.open_sealed, name="open_sealed"),
    path("ramps/", ramps.index, name="ramps"),
    path("ramps/<int:ramp>/", ramps.ramp, name="ramp"),
    path("ramps/<int:ramp>/live/", ramps.live, name="ramp_live"),
    path("ramps/<int:ramp>/shadow/", shadows.calls, name="shadow"),
    path("ramps/<int:ramp>/shadow/<int:copy>/", shadows.pair, name="shadow_pair"),
    path("ramps/<int:ramp>/shadow/<int:copy>/verdict/", shadows.say, name="say_verdict"),
    path("ramps/<int:ramp>/<slug:move>/", ramps.move, name="move_ramp"),
    path("lineage/<slug:kind>/<str:ref>/", lineage.lineage, name="lineage"),
    path("agents/<slug:agent>/turns/", turns.index, name="turns"),
    path("agents/<slug:agent>/turns/<int:turn>/", turns.turn, name="turn"),
    path("agents/<slug:agent>/next-turn/", turns.draft, name="draft"),
    path("agents/<slug:agent>/next-turn/start/", turns.start, name="start_turn"),
    path("agents/<slug:agent>/next-turn/freeze/", turns.freeze, name="freeze_draft"),
    path("agents/<slug:agent>/roll-back/", promotions.roll_back, name="roll_back"),
    path("agents/<slug:agent>/moves/<int:generation>/reason/", promotions.say_why, name="say_why"),
    path("agents/<slug:agent>/suites/", suites.of_agent, name="suites"),
    path("agents/<slug:agent>/suites/put/", suites.put, name="put_suite"),
    path("agents/<slug:agent>/suites/<slug:suite>/retire/", suites.retire, name="retire_suite"),
    path("agents/<slug:agent>/suites/<slug:suite>/run/", suites.run, name="run_suite"),
    path("beside/<int:candidate>/<int:baseline>/", suites.beside, name="suites_beside"),
    path("beside/<int:candidate>/<int:baseline>/run/", suites.run_beside, name="run_suites"),
    path("agents/<slug:agent>/first/<int:number>/", promotions.first, name="first"),
]
