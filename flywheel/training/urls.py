from django.urls import URLPattern, URLResolver, path

from flywheel.training.pages import (
    dataset_sources,
    datasets,
    launch,
    runs,
    tried,
)
from flywheel.training.pages.comparisons import side_by_side
from flywheel.training.pages.fixes import fix_trials, prompt_searches
from flywheel.training.pages.launching import hosted_training, pipelines, prompt_stages, token_previews
from flywheel.training.pages.rollouts import rollouts

app_name = "training"
# /p/<project>/training/
urlpatterns: list[URLPattern | URLResolver] = [
    path("", runs.index, name="index"),
    path("launch/", launch.launch_page, name="launch"),
    path("launch/files/<slug:format>.jsonl", hosted_training.provider_file, name="provider_file"),
    # /previews/<preview's number>/
    path("previews/<int:preview>/", token_previews.preview_page, name="preview"),
    path("previews/<int:preview>/live/", token_previews.preview_live, name="preview_live"),
    path("previews/<int:preview>/cancel/", token_previews.cancel_preview, name="cancel_preview"),
    path("previews/<int:preview>/resume/", token_previews.resume_preview, name="resume_preview"),
    # /pipelines/<pipeline's number>/
    path("pipelines/", pipelines.pipelines, name="pipelines"),
    path("pipelines/prompt/", prompt_stages.prompt_stage, name="prompt_stage"),
    path("pipelines/<int:pipeline>/", pipelines.pipeline_page, name="pipeline"),
    path("pipelines/<int:pipeline>/live/", pipelines.pipeline_live, name="pipeline_live"),
    path("pipelines/<int:pipeline>/stop/", pipelines.move_pipeline, {"verb": "stop"}, name="stop_pipeline"),
    path("pipelines/<int:pipeline>/resume/", pipelines.move_pipeline, {"verb": "resume"}, name="resume_pipeline"),
    path("pipelines/<int:pipeline>/retry/", pipelines.move_pipeline, {"verb": "retry"}, name="retry_pipeline"),
    path("pipelines/<int:pipeline>/end/", pipelines.move_pipeline, {"verb": "end"}, name="end_pipeline"),
    path("pipelines/<int:pipeline>/let-on/", pipelines.let_pipeline_on, name="let_pipeline_on"),
    path("recommendations/", launch.recommendations, name="recommendations"),
    # /fixes/<trial's number>/
    path("fixes/", fix_trials.fixes, name="fixes"),
    path("fixes/new/<slug:key>/", fix_trials.try_fix, name="try_fix"),
    path("fixes/new/<slug:key>/proposals/", prompt_searches.propose_prompts, name="propose_prompts"),
    # /fixes/searches/<search's number>/<proposal's place>/
    path("fixes/searches/", prompt_searches.searches, name="searches"),
    path("fixes/searches/<int:search>/", prompt_searches.search, name="search"),
    path("fixes/searches/<int:search>/live/", prompt_searches.search_live, name="search_live"),
    path("fixes/searches/<int:search>/cancel/", prompt_searches.cancel_search, name="cancel_search"),
    path("fixes/searches/<int:search>/resume/", prompt_searches.resume_search, name="resume_search"),
    path("fixes/searches/<int:search>/try/", prompt_searches.try_proposals, name="try_proposals"),
    path("fixes/searches/<int:search>/<int:place>/", prompt_searches.proposal, name="proposal"),
    path("fixes/<int:trial>/", fix_trials.fix_trial, name="fix_trial"),
    path("fixes/<int:trial>/live/", fix_trials.fix_trial_live, name="fix_trial_live"),
    path("fixes/<int:trial>/measure/", fix_trials.measure_fix, name="measure_fix"),
    path("datasets/", datasets.datasets, name="datasets"),
    path("datasets/mix/", dataset_sources.mix_page, name="mix"),
    path("datasets/upload/", dataset_sources.upload_dataset, name="upload_dataset"),
    path("datasets/from-trajectories/", dataset_sources.demonstrations, name="demonstrations"),
    # /datasets/builds/<job's number>/
    path("datasets/builds/<int:job>/", datasets.build_page, name="build"),
    path("datasets/builds/<int:job>/live/", datasets.build_live, name="build_live"),
    path("datasets/builds/<int:job>/cancel/", datasets.cancel_build, name="cancel_build"),
    path("datasets/builds/<int:job>/resume/", datasets.resume_build, name="resume_build"),
    path("datasets/<slug:name>/<int:version>/", datasets.dataset_page, name="dataset"),
    path(
        "datasets/<slug:name>/<int:version>/<slug:format>.openai.jsonl", datasets.download_format, name="dataset_format"
    ),
    path("datasets/<slug:name>/<int:version>/tokens/", token_previews.choose_preview, name="choose_preview"),
    path("datasets/<slug:name>/<int:version>/rows.jsonl", datasets.download, name="dataset_rows"),
    # /rollouts/<eval's number>/
    path("rollouts/", rollouts.collect_page, name="collect"),
    path("rollouts/<int:run>/", rollouts.rollouts, name="rollouts"),
    path("rollouts/<int:run>/write/", rollouts.write_dataset, name="write_dataset"),
    path("rollouts/<int:run>/<int:number>/<int:sample>/drop/", rollouts.drop_rollout, name="drop_rollout"),
    path(
        "rollouts/<int:run>/<int:number>/<int:sample>/take-back/", rollouts.take_rollout_back, name="take_rollout_back"
    ),
    path("compare/", side_by_side.compare, name="compare"),
    path("compare/cancel/", side_by_side.cancel_rest, name="cancel_rest"),
    # /runs/<pk>/
    path("runs/<int:pk>/", runs.run, name="run"),
    path("runs/<int:pk>/live/", runs.live, name="live"),
    path("runs/<int:pk>/tried/", tried.tried, name="tried"),
    path("runs/<int:pk>/cancel/", runs.cancel, name="cancel"),
    path("runs/<int:pk>/resume/", runs.resume, name="resume"),
    path("runs/<int:pk>/repeat/", runs.repeat, name="repeat"),
    path("runs/<int:pk>/checkpoints/", runs.checkpoints, name="checkpoints"),
    path("runs/<int:pk>/checkpoints/<int:step>/version/", runs.make_version, name="checkpoint_version"),
    path("runs/<int:pk>/files/<path:name>", runs.download, name="run_file"),
]
