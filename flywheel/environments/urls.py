from django.urls import URLPattern, URLResolver, path

from flywheel.environments.pages import sandbox_views
from flywheel.environments.pages.environments import environment_views, generation_views
from flywheel.environments.pages.playground import play_views
from flywheel.environments.pages.task_sets import export_views, task_set_views
from flywheel.environments.pages.tasks import (
    eval_import_views,
    import_views,
    offer_views,
    task_views,
    taskless_views,
    variant_views,
)
from flywheel.environments.pages.verifier_editor import recipe_views, reward_model_views, verifier_views
from flywheel.environments.pages.world_editor import world_views

app_name = "environments"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", environment_views.index, name="index"),
    path("new/", environment_views.create, name="create"),
    path("new/server.py", environment_views.server_starter, name="server_starter"),
    path("sandbox/", sandbox_views.sandbox, name="sandbox"),
    path("import-eval/", eval_import_views.import_openai_eval, name="import_eval"),
    path("without-task/", taskless_views.taskless, name="taskless"),
    path("rewards/", recipe_views.index, name="reward_recipes"),
    path("reward-models/", reward_model_views.index, name="reward_models"),
    path("reward-models/<slug:name>@<int:number>/", reward_model_views.reward_model, name="reward_model"),
    path("rewards/new/", recipe_views.make, name="make_recipe"),
    path("rewards/<slug:name>/<int:number>/", recipe_views.recipe, name="reward_recipe"),
    path("sets/<slug:name>/<int:version>/", task_set_views.task_set, name="task_set"),
    path("sets/<slug:name>/<int:version>/export/", export_views.download, name="export"),
    # /of/<trace_id>/
    path("of/<str:trace_id>/", offer_views.offer, name="make"),
    path("of/<str:trace_id>/make/", offer_views.make_task, name="make_task"),
    # /e/<name>/
    path("e/<slug:name>/", environment_views.environment, name="environment"),
    path("e/<slug:name>/versions/", environment_views.make_version, name="make_version"),
    path("e/<slug:name>/versions/<int:of_version>/setting/", environment_views.setting, name="setting"),
    path("e/<slug:name>/verifier/", verifier_views.verifier, name="verifier"),
    path("e/<slug:name>/prove/", verifier_views.prove, name="prove"),
    path("e/<slug:world>/world/", world_views.edit, name="world"),
    path("e/<slug:world>/tasks/write/", world_views.write_task, name="write_task"),
    path("worlds/try/", world_views.try_world, name="try_world"),
    path("worlds/trials/<int:world_trial>/", world_views.trial, name="world_trial"),
    path("worlds/trials/<int:world_trial>/stop/", world_views.stop_trial, name="stop_world_trial"),
    path("plays/<int:play>/right/", world_views.say_right, name="say_right"),
    path("trials/<int:trial>/", verifier_views.trial, name="trial"),
    path("trials/<int:trial>/stop/", verifier_views.stop_trial, name="stop_trial"),
    path("provings/<int:proving>/stop/", verifier_views.stop_proving, name="stop_proving"),
    path("provings/<int:proving>/live/", verifier_views.proving_live, name="proving_live"),
    path("e/<slug:name>/make-all/", environment_views.make_all, name="make_all"),
    path("e/<slug:name>/import/", import_views.choose, name="import_tasks"),
    path("e/<slug:name>/import/<str:token>/", import_views.look_at, name="look_at_tasks"),
    path("e/<slug:name>/import/<str:token>/discard/", import_views.discard, name="discard_tasks"),
    path("e/<slug:name>/generate/", generation_views.start, name="generate"),
    path("generations/<int:pk>/live/", generation_views.live, name="generation_live"),
    path("generations/<int:pk>/cancel/", generation_views.cancel, name="cancel_generation"),
    path("generations/<int:pk>/resume/", generation_views.resume, name="resume_generation"),
    path("e/<slug:name>/freeze/", environment_views.freeze, name="freeze"),
    path("e/<slug:name>/tasks/<int:number>/", task_views.task, name="task"),
    path("e/<slug:name>/play/", play_views.start_any, name="play_any"),
    path("e/<slug:name>/tasks/<int:number>/play/", play_views.start, name="start_play"),
    # /plays/<play>/
    path("plays/<int:play>/", play_views.play, name="play"),
    path("plays/<int:play>/live/", play_views.live, name="play_live"),
    path("plays/<int:play>/say/", play_views.say, name="say"),
    path("plays/<int:play>/ask/", play_views.ask, name="ask"),
    path("plays/<int:play>/take-back/", play_views.take_back, name="take_back"),
    path("plays/<int:play>/judge/", play_views.judge, name="judge_play"),
    path("plays/<int:play>/stop/", play_views.stop, name="stop_play"),
    path("e/<slug:name>/tasks/<int:number>/vary/", variant_views.vary, name="vary"),
    path("e/<slug:name>/tasks/<int:number>/retire/", task_views.retire_task, name="retire"),
]
