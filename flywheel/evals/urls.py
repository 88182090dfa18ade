from django.urls import URLPattern, URLResolver, path

from flywheel.evals import grid_views, people_views, rescore_views, views
from flywheel.evals import reward_audit_views as audits

app_name = "evals"
# /p/<project>/evals/
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.index, name="index"),
    path("new/", views.new, name="new"),
    path("pair/", views.pair, name="pair"),
    path("reward/", audits.reward, name="reward"),
    path("reward/override/", audits.override, name="override_reward_audit"),
    path("reward-audits/", audits.index, name="reward_audits"),
    path("reward-audits/begin/", audits.begin, name="begin_reward_audit"),
    path("reward-audits/of/<slug:name>/", audits.of_environment, name="reward_audits_of"),
    path("reward-audits/<int:audit>/", audits.audit, name="reward_audit"),
    path("reward-audits/<int:audit>/items/<int:place>/", audits.judge, name="judge_output"),
    path("reward-audits/<int:audit>/undo/", audits.undo, name="undo_judgement"),
    path("reward-audits/<int:audit>/finish/", audits.finish, name="finish_reward_audit"),
    path("sets/<slug:task_set>/<int:version>/", grid_views.grid, name="grid"),
    path("people/<slug:name>/", people_views.people, name="people"),
    path("<int:pk>/", views.run, name="run"),
    path("<int:pk>/live/", views.live, name="live"),
    path("<int:pk>/matrix/", views.matrix, name="matrix"),
    path("<int:pk>/rescores/", rescore_views.rescores, name="rescores"),
    path("<int:pk>/rescore/", rescore_views.start, name="start_rescore"),
    path("rescores/<int:rescore>/", rescore_views.rescore, name="rescore"),
    path("rescores/<int:rescore>/live/", rescore_views.live, name="rescore_live"),
    path("rescores/<int:rescore>/cancel/", rescore_views.cancel, name="cancel_rescore"),
    path("rescores/<int:rescore>/resume/", rescore_views.resume, name="resume_rescore"),
    path("<int:pk>/cancel/", views.cancel, name="cancel"),
    path("<int:pk>/resume/", views.resume, name="resume"),
    path("<int:candidate>/against/<int:baseline>/", views.compare, name="compare"),
    path("<int:candidate>/against/<int:baseline>/tasks/<int:number>/", views.changed, name="changed"),
]
