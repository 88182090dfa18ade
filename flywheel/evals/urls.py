from django.urls import URLPattern, URLResolver, path

from flywheel.evals.pages import (
    agreement_views,
    grid_views,
    rescore_views,
    reward_audit_views,
    run_views,
    serving_views,
)

app_name = "evals"
# /p/<project>/evals/
urlpatterns: list[URLPattern | URLResolver] = [
    path("", run_views.index, name="index"),
    path("new/", run_views.new, name="new"),
    path("pair/", run_views.pair, name="pair"),
    path("reward/", reward_audit_views.reward, name="reward"),
    path("reward/override/", reward_audit_views.override, name="override_reward_audit"),
    path("reward-audits/", reward_audit_views.index, name="reward_audits"),
    path("reward-audits/begin/", reward_audit_views.begin, name="begin_reward_audit"),
    path("reward-audits/of/<slug:name>/", reward_audit_views.of_environment, name="reward_audits_of"),
    path("reward-audits/<int:audit>/", reward_audit_views.audit, name="reward_audit"),
    path("reward-audits/<int:audit>/items/<int:place>/", reward_audit_views.judge, name="judge_output"),
    path("reward-audits/<int:audit>/undo/", reward_audit_views.undo, name="undo_judgement"),
    path("reward-audits/<int:audit>/finish/", reward_audit_views.finish, name="finish_reward_audit"),
    path("sets/<slug:task_set>/<int:version>/", grid_views.grid, name="grid"),
    path("serving/", serving_views.serving, name="serving"),
    path("serving/choose/", serving_views.choose, name="choose_base"),
    path("people/<slug:name>/", agreement_views.people, name="people"),
    path("<int:pk>/", run_views.run, name="run"),
    path("<int:pk>/live/", run_views.live, name="live"),
    path("<int:pk>/matrix/", run_views.matrix, name="matrix"),
    path("<int:pk>/rescores/", rescore_views.rescores, name="rescores"),
    path("<int:pk>/rescore/", rescore_views.start, name="start_rescore"),
    path("rescores/<int:rescore>/", rescore_views.rescore, name="rescore"),
    path("rescores/<int:rescore>/live/", rescore_views.live, name="rescore_live"),
    path("rescores/<int:rescore>/cancel/", rescore_views.cancel, name="cancel_rescore"),
    path("rescores/<int:rescore>/resume/", rescore_views.resume, name="resume_rescore"),
    path("<int:pk>/cancel/", run_views.cancel, name="cancel"),
    path("<int:pk>/resume/", run_views.resume, name="resume"),
    path("<int:candidate>/against/<int:baseline>/", run_views.compare, name="compare"),
    path("<int:candidate>/against/<int:baseline>/tasks/<int:number>/", run_views.changed, name="changed"),
]
