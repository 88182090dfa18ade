"""Our environments in the hands of others: the protocols they speak, and packages in which they take an environment.

`foreign_attempt`, `bundle`, `gym_server` and `gym_http` run on both sides: an export carries copies of them and of all
of `flywheel.core` that they need (`carried_code`). `environment_exports` makes the exports. No Django here.
"""
